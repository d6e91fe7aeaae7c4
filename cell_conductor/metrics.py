"""Counts builds, their outcomes and durations."""

from collections.abc import Iterable

from prometheus_client import Counter, Histogram

from bus.messages import BuildEnded
from bus.vocabulary import Message
from cell_conductor.core.build import ABORTED, DELETED_BEFORE, DELETED_WHILE_BUILDING, Build

BUILDS_ENDED = Counter(
    "berth_builds_ended", "ends of builds that a cell published, repetitions included", ["cell", "status"]
)
BUILD_OUTCOMES = Counter(
    "berth_build_outcomes",
    "ends of builds, each once: active, failed (by berth or a host), impossible (as the agent reported) or"
    " deleted (before the end)",
    ["cell", "outcome"],
)
BUILD_SECONDS = Histogram(
    "berth_build_seconds",
    "from the publication of a request to its active instance, without requests that waited for capacity",
    ["cell"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600),
)


def show_outcomes(cell: str) -> None:
    """Create the metrics of a cell's build outcomes with the value 0, because Prometheus computes no rate if
    the first value is above 0.
    """
    for outcome in ("active", "failed", "impossible", "deleted"):
        BUILD_OUTCOMES.labels(cell, outcome)
    BUILD_SECONDS.labels(cell)


def count_change(before: Build | None, after: Build, now: float) -> None:
    """Count the end of a build in the metrics, after its new state `after` was stored."""
    if before is None or before.end or not after.end:
        return
    BUILD_OUTCOMES.labels(after.cell, outcome_of(after)).inc()
    if after.end == "active" and after.as_placed.requested and not after.as_placed.waited_since:
        BUILD_SECONDS.labels(after.cell).observe(max(now - after.as_placed.requested, 0.0))


def outcome_of(build: Build) -> str:
    """Return how a build ended, as a metric's label: active, deleted (by a client), impossible or failed."""
    if build.end == "active":
        return "active"
    if build.doom in (DELETED_BEFORE, DELETED_WHILE_BUILDING):
        return "deleted"
    return "impossible" if build.doom.startswith(ABORTED) else "failed"


def count_ends(messages: Iterable[Message]) -> None:
    for message in messages:
        if isinstance(message, BuildEnded):
            BUILDS_ENDED.labels(message.cell, message.status).inc()

"""The outcome and the time of a build are counted once, when its end is stored."""

import pytest
from msgspec.structs import replace

from bus.claims import Released
from bus.messages import BuildPlaced
from bus.parts import Part, PlacedParts
from cell_conductor.builds import BUILD_OUTCOMES, BUILD_SECONDS, count_change
from cell_conductor.core.build import Build
from cell_conductor.core.events import Event, ReleaseAnswer
from tests.support.conductor_builders import CELL, a_build_order, a_delete, a_placed, an_agent_report, step
from tests.unit.test_conductor import LIMITS, after


class Waited(Part, frozen=True):
    waits_since: float = 900.0


OUTCOMES = ("active", "failed", "impossible", "deleted")
PLACED = replace(a_placed(hosts=1), requested=1000.0)
FIRST = a_build_order(PLACED)
RELEASED = ReleaseAnswer("swapping", Released())
BUILT = an_agent_report(FIRST, "built")
ENDS: dict[str, tuple[Event, ...]] = {
    "active": (BUILT,),
    "failed": (an_agent_report(FIRST, "failed"), RELEASED),
    "impossible": (an_agent_report(FIRST, "failed", retry=False), RELEASED),
    "deleted": (
        a_delete(PLACED), an_agent_report(FIRST, "destroyed"), ReleaseAnswer("deleting", Released()),
    ),
}  # fmt: skip


def counted() -> list[float]:
    return [BUILD_OUTCOMES.labels(CELL, outcome)._value.get() for outcome in OUTCOMES]


def seconds() -> float:
    return float(BUILD_SECONDS.labels(CELL)._sum.get())


def follow(placed: BuildPlaced, *events: Event, now: float = 1002.5) -> Build:
    """Apply each event twice, as after a redelivery, and count each change."""
    build = after(placed)
    for event in (each for each in events for _ in range(2)):
        before, (next_build, _) = build, step(build, event, now, LIMITS)
        assert next_build is not None
        build = next_build
        count_change(before, build, now)
    return build


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_each_end_of_a_build_is_counted_once_by_its_cause(outcome: str) -> None:
    started = counted()
    follow(PLACED, *ENDS[outcome])
    gained = [now - then for now, then in zip(counted(), started, strict=True)]
    assert gained == [float(each == outcome) for each in OUTCOMES]


@pytest.mark.parametrize(
    ("placed", "observed"),
    [
        (PLACED, 2.5),
        (replace(PLACED, requested=2000.0), 0.0),  # the client's clock is ahead
        (replace(PLACED, requested=0.0), 0.0),  # unknown
        (replace(PLACED, parts=PlacedParts(Waited())), 0.0),  # waited for capacity
    ],
)
def test_the_time_from_request_to_active_is_measured(placed: BuildPlaced, observed: float) -> None:
    started = seconds()
    follow(placed, BUILT)
    assert seconds() - started == observed

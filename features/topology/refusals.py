"""Counts the requests that no domain could take."""

from collections.abc import Iterable

from prometheus_client import Counter

from bus.messages import BuildRequested, BuildUnplaceable
from features.topology.core.gang_shortage import TOPOLOGY_CODE
from features.topology.messages import topology_of

MOST_LEVELS = 32  # levels counted separately: requests may name any level

TOPOLOGY = Counter(
    "berth_scheduler_topology_refusals",
    "requests without a host because of a topology, by level; group: of a server group",
    ["level"],
)

_levels: set[str] = set()


def count_unplaceable(ended: Iterable[tuple[BuildRequested, BuildUnplaceable]]) -> None:
    """Count the requests that no domain could take, for each required level."""
    for request, message in ended:
        if message.decision.code == TOPOLOGY_CODE:
            topology = topology_of(request.parts)
            levels = {level for level in (topology.required_pack, topology.required_spread) if level}
            for level in levels or {"group"}:
                _count_level(level)


def _count_level(level: str) -> None:
    if level not in _levels and len(_levels) >= MOST_LEVELS:
        level = "other"
    else:
        _levels.add(level)
    TOPOLOGY.labels(level).inc()

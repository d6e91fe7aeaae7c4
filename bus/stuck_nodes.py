"""Finds Ironic's nodes that are stuck: they offer nothing for longer than the reason usually takes.

Placement's record of a node has the reason and the time of the last report. Reports are made from Ironic's
notifications, so no access to Ironic's API is necessary.
"""

from collections.abc import Iterable, Mapping

from bus.domains import WHY_CLOSED, Closed
from bus.resources import Provider
from bus.vocabulary import Value

# Reason for which a node is closed → seconds after which it is stuck. Operators keep other nodes closed.
AFTER: Mapping[Closed, float] = {
    "failed": 600.0,
    "power": 600.0,
    "no class": 3600.0,
    "in use": 3600.0,
    "cleaning": 4 * 3600.0,
    "maintenance": 7 * 86400.0,
}
_EARLIEST = 1e9  # a report with an earlier time has none, such as that of a simulated node


class StuckNode(Value, frozen=True, kw_only=True):
    """A node of Ironic that offers nothing for too long."""

    node: str
    name: str  # in Ironic; its id if it has no name
    cell: str
    reason: Closed
    since: float  # when its present state was reported; 0: unknown
    why: str


def reported_at(sequence: int) -> float:
    """Return the time of a report of a node by its sequence number, in seconds; 0 if it has no time."""
    at = sequence / 1_000_000
    return at if at > _EARLIEST else 0.0


def stuck_node(
    node: str, name: str, cell: str, reason: Closed, since: float, now: float, *, is_held: bool
) -> StuckNode | None:
    """Return a node if it is stuck. `reason`: why it is closed; `since`: time of that report, 0 if unknown;
    `is_held`: a consumer in placement has an allocation of it.
    """
    if reason not in AFTER or now - since <= AFTER[reason] or (reason == "in use" and is_held):
        return None
    why = WHY_CLOSED[reason]
    if reason == "in use":
        why = f"{why}, and no consumer in placement holds it"
    return StuckNode(node=node, name=name or node, cell=cell, reason=reason, since=since, why=why)


def stuck_nodes(nodes: Iterable[Provider], now: float) -> list[StuckNode]:
    """Return the stuck nodes, the longest stuck one first. The providers need the parts `inventories` and
    `owner`.
    """
    found = [
        stuck_node(
            node.id, node.host, node.cell, node.label_sources.closed, reported_at(node.sequence), now,
            is_held=any(node.used.values()),
        )
        for node in nodes
        if not node.gone
    ]  # fmt: skip
    return sorted(filter(None, found), key=lambda stuck: (stuck.since, stuck.name))

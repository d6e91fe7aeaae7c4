"""Hosts read from pages of placement's trees."""

from collections.abc import Mapping
from dataclasses import dataclass

from bus.host_marks import DISABLED, FORCED_DOWN
from bus.replication import KnownTree, TreesFound


@dataclass(frozen=True, slots=True)
class ReportedHost:
    root: str
    name: str
    cell: str
    zone: str
    closed: bool


def reported_host(found: TreesFound, tree: KnownTree, zones: Mapping[str, str]) -> ReportedHost | None:
    """Return the host of a tree, or None if it was deleted or no agent reports it. `zones`: by aggregate."""
    if not tree.providers or not found.owners[tree.owner][1]:
        return None
    top, (cell, _, zone) = tree.providers[0], found.owners[tree.owner]
    traits = found.traits[top.traits]
    return ReportedHost(
        root=tree.root or top.id,
        name=tree.host or top.name,
        cell=cell,
        zone=next((zones[one] for one in found.aggregates[top.aggregates] if one in zones), zone),
        closed=DISABLED in traits or FORCED_DOWN in traits,
    )

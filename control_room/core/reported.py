"""Hosts as pages of placement's trees tell of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from bus.host_marks import DISABLED, FORCED_DOWN
from bus.known_trees import KnownTree, TreesFound


@dataclass(frozen=True, slots=True)
class ReportedHost:
    root: str
    name: str
    cell: str
    zone: str
    closed: bool


def reported_host(found: TreesFound, tree: KnownTree, zones: Mapping[str, str]) -> ReportedHost | None:
    """`zones`: of aggregates. None: it is gone, or nobody reports it."""
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

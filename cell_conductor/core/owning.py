"""Who owns which bare-metal node, and which changes hands when agents come and go.

A node is free, or an instance is on it, comes or goes (`held`), or all that is left to do is to destroy
(`ending`). Free nodes follow the ring. One that is not free stays with its agent: a held one until it is
deleted or an operator says `rehome`; one that is ending goes on when its agent's lease is over for certain,
for a deletion must come to an end, and whoever destroys finds in Ironic all that there is to know.

A node never goes at once from an agent that is alive: first it is leaving, which the agent is told, and it
has another owner when the agent says that it has seen so, or its lease is over. Every change of hands raises
the node's epoch.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from cell_conductor.core.ring import Preference, dealt, preference

Use = Literal["held", "ending"]  # of a node that is not free


class RingMember(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that shares the nodes of a pool with others."""

    agent: str
    pool: str
    run: str = ""
    epoch: int = 1  # of its lease
    beat: int = 0  # how often that was renewed
    alive: bool = True  # its lease may not be over
    disabled: bool = False
    lease: float = 0.0  # seconds, as it was told
    seen: int = 0  # the version of the pool's nodes that it knows
    heard: float = 0.0  # wall time, for people

    @property
    def takes(self) -> bool:
        return self.alive and not self.disabled


class RingNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a pool, and who may act on it."""

    root: str
    owner: str = ""  # nobody yet
    epoch: int = 0
    version: int = 0  # of the pool's nodes, when it changed last
    # Its owner is to stop: as long as it is free, or in any case, or since there is no such node any more
    leaving: Literal["", "free", "all", "gone"] = ""
    to: str = ""  # who gets it then; empty: as the ring says


def moves(
    nodes: Collection[RingNode], members: Iterable[RingMember], uses: Mapping[str, Use]
) -> list[RingNode]:
    """What becomes of those nodes that do not stay as they are; those that are gone can be `forgotten`."""
    known = {member.agent: member for member in members}
    takers = [agent for agent, member in known.items() if member.takes]
    free = {node.root: node.owner for node in nodes if node.root not in uses and node.leaving in ("", "free")}
    if _settled(nodes, takers):
        return []
    order = preference(takers or known)
    wanted = dealt(free, takers or list(known), order) if free else {}
    changed = []
    for node in nodes:
        chosen = known.get(node.to)
        if chosen is not None and chosen.alive:
            to = chosen.agent
        else:
            to = wanted.get(node.root) or _first(order, node)
        after = _moved(node, uses.get(node.root), to, known, bool(takers))
        if after is not node:
            changed.append(after)
    return changed


def _moved(
    node: RingNode, use: Use | None, to: str, known: Mapping[str, RingMember], takers: bool
) -> RingNode:
    owner = known.get(node.owner)
    if owner is None:
        return _given(node, to) if to else node
    if node.leaving:
        if node.leaving == "gone" or not _has_stopped(node, owner):
            return node
        if node.leaving == "all":
            return _given(node, to) if to and to != node.owner else node
        # A build may have come to it since: then it stays, under an epoch of which all is said anew.
        return _given(node, to if use is None or (not owner.alive and use == "ending") else node.owner)
    if owner.alive:
        return replace(node, leaving="free") if use is None and to != node.owner else node
    return _given(node, to) if takers and to and use != "held" else node


def forgotten(nodes: Iterable[RingNode], members: Iterable[RingMember]) -> list[str]:
    """Those that are gone, and that nobody takes for his any more: one that comes back begins anew."""
    known = {member.agent: member for member in members}
    gone = [node for node in nodes if node.leaving == "gone"]
    return [node.root for node in gone if node.owner not in known or _has_stopped(node, known[node.owner])]


def _has_stopped(node: RingNode, owner: RingMember) -> bool:
    return not owner.alive or owner.seen >= node.version


def rehomed(nodes: Iterable[RingNode], to: str) -> list[RingNode]:
    """An operator wants these to have another agent, whatever is on them."""
    return [replace(node, leaving="all", to=to) for node in nodes]


def _given(node: RingNode, to: str) -> RingNode:
    return replace(node, owner=to, epoch=node.epoch + 1, leaving="", to="")


def _first(order: Preference, node: RingNode) -> str:
    """Another than the one who has it; it may be that there is none."""
    return next((agent for agent in order(node.root) if agent != node.owner), "")


def _settled(nodes: Collection[RingNode], takers: Collection[str]) -> bool:
    """One agent alone that has everything: nothing is to be dealt, as in most cells."""
    return len(takers) == 1 and all(node.owner in takers and not node.leaving for node in nodes)

"""Ownership of bare-metal nodes, and its changes when agents start and stop.

A node is free, `held` (an instance is on it, or comes or goes) or `ending` (only destruction is left). Free
nodes follow the ring. A held node stays with its agent until it is deleted or an operator orders `rehome`.
An ending node moves on when its agent's lease has expired for certain: a deletion must complete, and any
agent can read the rest from Ironic.

A node never moves directly away from a live agent: it is marked as leaving, the agent is notified, and the
owner changes when the agent has confirmed it or its lease has expired. Every change of owner raises the
node's epoch.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from cell_conductor.core.ring import Preference, dealt, preference

Use = Literal["held", "ending"]  # of a node that is not free


class RingMember(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that shares the nodes of a pool."""

    agent: str
    pool: str
    run: str = ""
    epoch: int = 1  # of its lease
    beat: int = 0  # number of renewals
    alive: bool = True  # its lease may still be valid
    disabled: bool = False
    lease: float = 0.0  # seconds, as reported to the agent
    seen: int = 0  # the version of the pool's nodes that the agent has confirmed
    heard: float = 0.0  # wall time, for display

    @property
    def takes(self) -> bool:
        return self.alive and not self.disabled


class RingNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a pool, and the agent that may act on it."""

    root: str
    owner: str = ""  # empty: not assigned yet
    epoch: int = 0
    version: int = 0  # of the pool's nodes, at its last change
    # The owner must stop: if the node is free, in any case, or because the node was deleted
    leaving: Literal["", "free", "all", "gone"] = ""
    to: str = ""  # the next owner; empty: by the ring


def moves(
    nodes: Collection[RingNode], members: Iterable[RingMember], uses: Mapping[str, Use]
) -> list[RingNode]:
    """Return the nodes that change. Deleted nodes can be `forgotten`."""
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
        # A build may have arrived since: then the node stays, under an epoch for which all orders are
        # repeated.
        return _given(node, to if use is None or (not owner.alive and use == "ending") else node.owner)
    if owner.alive:
        return replace(node, leaving="free") if use is None and to != node.owner else node
    return _given(node, to) if takers and to and use != "held" else node


def forgotten(nodes: Iterable[RingNode], members: Iterable[RingMember]) -> list[str]:
    """Return deleted nodes that no agent acts on any more; a node that returns starts anew."""
    known = {member.agent: member for member in members}
    gone = [node for node in nodes if node.leaving == "gone"]
    return [node.root for node in gone if node.owner not in known or _has_stopped(node, known[node.owner])]


def _has_stopped(node: RingNode, owner: RingMember) -> bool:
    return not owner.alive or owner.seen >= node.version


def rehomed(nodes: Iterable[RingNode], to: str) -> list[RingNode]:
    """Return the nodes marked to get another agent, whatever is on them."""
    return [replace(node, leaving="all", to=to) for node in nodes]


def _given(node: RingNode, to: str) -> RingNode:
    return replace(node, owner=to, epoch=node.epoch + 1, leaving="", to="")


def _first(order: Preference, node: RingNode) -> str:
    """Return the first other agent in the ring's order, or an empty string."""
    return next((agent for agent in order(node.root) if agent != node.owner), "")


def _settled(nodes: Collection[RingNode], takers: Collection[str]) -> bool:
    """Return whether a single agent owns everything, as in most cells."""
    return len(takers) == 1 and all(node.owner in takers and not node.leaving for node in nodes)

"""Distributes bare-metal nodes over agents, as agents start and stop and their leases expire.

Few free nodes change owner: a node without an agent goes to the agent with the fewest nodes; all other nodes
stay, unless an agent has much too few nodes, such as a new agent, or much too many. Then agents give nodes to
agents with fewer nodes, until all have an equal share.

A node is free, `held` (an instance is on the node, or moves to or from the node) or `ending` (a guest is to
be destroyed). A held node stays with its agent until the node is deleted or an operator orders `rehome`. An
ending node gets another agent if its agent's lease has certainly expired, because a deletion must complete.

A node never moves directly away from a live agent: it is marked as leaving, the agent is notified, and the
owner changes when the agent has confirmed it or its lease has expired. Every change of owner raises the
node's epoch.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from math import ceil
from typing import Literal

import msgspec
from msgspec.structs import replace

from features.shared_nodes.messages import SharingEditRequested

SLACK = 0.05  # permitted deviation of an agent's nodes from the even share; one node is always permitted


def dealt(owners: Mapping[str, str], agents: Collection[str]) -> dict[str, str]:
    """Return the agent of each bare-metal node, spread evenly over `agents`. `owners` has each node's present
    agent, or "".
    """
    if not agents:
        return dict(owners)
    held: dict[str, list[str]] = {agent: [] for agent in sorted(agents)}
    homeless: list[str] = []
    for node in sorted(owners):
        held.get(owners[node], homeless).append(node)
    shares = list(held.values())
    for node in homeless:
        min(shares, key=len).append(node)
    even = len(owners) / len(agents)
    most, least = ceil(even * (1 + SLACK)), min(int(even * (1 - SLACK)), int(even) - 1)
    if len(max(shares, key=len)) > most or len(min(shares, key=len)) < least:
        while len(rich := max(shares, key=len)) - len(poor := min(shares, key=len)) > 1:
            poor.append(rich.pop())
    return {node: agent for agent, nodes in held.items() for node in nodes}


Use = Literal["held", "ending"]  # use of a node that is not free


class RingMember(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that shares the bare-metal nodes of a pool."""

    agent: str
    pool: str
    run: str = ""
    epoch: int = 1  # number of the lease; it grows with each new lease
    beat: int = 0  # number of renewals of the lease
    alive: bool = True  # False if the lease has certainly expired
    disabled: bool = False
    lease: float = 0.0  # duration of the lease in seconds, as the agent received it
    seen: int = 0  # version of the pool that the agent has confirmed
    asked_at: float = 0.0  # time of the last renewal (wall clock), for display

    @property
    def takes(self) -> bool:
        return self.alive and not self.disabled


def refusal(request: SharingEditRequested, members: Mapping[str, RingMember]) -> str:
    """Return why an operator's request about an agent is refused, or "". `members`: the cell's agents."""
    member = members.get(request.agent)
    if member is None:
        known = ", ".join(sorted(members)) or "none"
        return f"no agent {request.agent!r} shares nodes in this cell; there are: {known}"
    if request.edit != "rehome":
        return ""
    if member.takes and not request.nodes:
        return f"{member.agent} is enabled and would get free nodes again: disable it first"
    takers = {taker.agent for taker in members.values() if taker.takes and taker.pool == member.pool}
    if not request.to:
        return "" if takers - {member.agent} else f"no other agent can take the nodes of {member.pool}"
    to = members.get(request.to)
    if to is None or to.pool != member.pool:
        return f"there is no agent {request.to!r} that acts for {member.pool}"
    if to is member:
        return f"{member.agent} has them"
    return "" if to.alive else f"{to.agent} is not there: its lease is over"


class RingNode(msgspec.Struct, frozen=True, kw_only=True):
    """A bare-metal node of a pool, with the agent that may act on it."""

    root: str
    owner: str = ""  # the agent that may act on the node; empty: none yet
    epoch: int = 0
    version: int = 0  # version of the pool at the last change of this node
    # why the owner must stop: `free`: only if the node is free; `all`: in any case; `gone`: the node was
    # deleted
    leaving: Literal["", "free", "all", "gone"] = ""
    to: str = ""  # the next owner; empty: the agent with the fewest nodes


def moves(
    nodes: Collection[RingNode], members: Iterable[RingMember], uses: Mapping[str, Use]
) -> list[RingNode]:
    """Return the changed records of nodes that must change their agent: with a new agent, or marked `leaving`
    so that the present agent first stops acting on the node. `uses`: the use of each node that is not free.
    """
    known = {member.agent: member for member in members}
    takers = [agent for agent, member in known.items() if member.takes]
    free = {node.root: node.owner for node in nodes if node.root not in uses and node.leaving in ("", "free")}
    if len(takers) == 1 and all(node.owner in takers and not node.leaving for node in nodes):
        return []  # most cells have no shared nodes
    agents = takers or list(known)
    wanted = dealt(free, agents)
    loads = Counter(wanted.get(node.root, node.owner) for node in nodes)
    changed = []
    for node in nodes:
        chosen = known.get(node.to)
        if chosen is not None and chosen.alive:
            to = chosen.agent
        else:
            others = (agent for agent in agents if agent != node.owner)
            to = wanted.get(node.root) or min(others, key=loads.__getitem__, default="")
        after = _moved(node, uses.get(node.root), to, known, bool(takers))
        if after is not node:
            changed.append(after)
            if node.root not in wanted:
                loads[after.owner] += 1
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
        # If a build has arrived on the node since it was marked, the owner stays, and with the raised epoch
        # all orders are repeated.
        return _given(node, to if use is None or (not owner.alive and use == "ending") else node.owner)
    if owner.alive:
        return replace(node, leaving="free") if use is None and to != node.owner else node
    return _given(node, to) if takers and to and use != "held" else node


def forgotten(nodes: Iterable[RingNode], members: Iterable[RingMember]) -> list[str]:
    """Return the roots of deleted nodes that no agent acts on any more: their records can be deleted."""
    known = {member.agent: member for member in members}
    gone = [node for node in nodes if node.leaving == "gone"]
    return [node.root for node in gone if node.owner not in known or _has_stopped(node, known[node.owner])]


def _has_stopped(node: RingNode, owner: RingMember) -> bool:
    return not owner.alive or owner.seen >= node.version


def _given(node: RingNode, to: str) -> RingNode:
    return replace(node, owner=to, epoch=node.epoch + 1, leaving="", to="")


DRIFT = 0.02  # fraction by which an agent's clock may be slower
GRACE = 0.25  # seconds after the end of a lease until the agent's last requests have certainly arrived

Mark = tuple[int, int]  # the epoch of a lease, and its number of renewals


class LastRenewals:
    """Records when this conductor first saw each agent's last heartbeat, to detect expired leases."""

    def __init__(self, silent_after: float) -> None:
        self._silent_after = silent_after
        self._seen: dict[str, tuple[Mark, float]] = {}  # agent → last heartbeat, and when it was first seen
        self._last_beat = float("-inf")  # when any agent last sent a heartbeat

    def note(self, marks: Mapping[str, Mark], now: float) -> None:
        """Record the last heartbeats of agents as read from the database. After a long time without any,
        all leases start again at the present time: agents may have been unable to reach this conductor."""
        known = {agent: seen[0] for agent, seen in self._seen.items()}
        same = {agent for agent, mark in marks.items() if known.get(agent) == mark}
        if len(same) < len(marks):
            self.renewed(now)
        if now - self._last_beat > self._silent_after:
            same = set()
        self._seen = {name: self._seen[name] if name in same else (mark, now) for name, mark in marks.items()}

    def renewed(self, now: float) -> None:
        """Record that an agent renewed its lease, so agents can reach this conductor. After a long time
        without any renewal, all leases start again at the present time."""
        if now - self._last_beat > self._silent_after:
            self._seen = {agent: (mark, now) for agent, (mark, _) in self._seen.items()}
        self._last_beat = now

    def left(self, agent: str, mark: Mark, lease: float, now: float) -> float:
        """Return the seconds until an agent's lease of `lease` seconds, last renewed at `mark`, has certainly
        expired; 0 or less if it has."""
        seen = self._seen.get(agent)
        since = seen[1] if seen is not None and seen[0] == mark else now
        return since + lease * (1 + DRIFT) + GRACE - now

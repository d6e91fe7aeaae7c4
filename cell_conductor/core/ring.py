"""Deals free nodes to agents: consistent hashing with bounded imbalance.

Each node has an order of preference from the ring. As few nodes as possible change owner: an agent keeps its
nodes; nodes without an agent go to the first in their order with capacity; only agents with much too few
nodes, such as new ones, or much too many are balanced.
"""

from collections.abc import Callable, Collection, Mapping
from functools import cache, lru_cache
from hashlib import blake2b
from math import ceil

SLACK = 0.05  # allowed deviation from the even share; one node less is always allowed
POINTS = 160  # points of each agent on the ring

Preference = Callable[[str], tuple[str, ...]]


def preference(agents: Collection[str]) -> Preference:
    """Return the order of these agents for any node: different for each node, always the same for one node.

    Removing an agent does not change the order of the rest.
    """
    return _preference(tuple(sorted(agents)))


@lru_cache(maxsize=8)
def _preference(agents: tuple[str, ...]) -> Preference:
    from uhashring import HashRing  # needed only if agents share nodes

    ring = HashRing(nodes=list(agents), vnodes=POINTS, hash_fn=_position)

    @cache
    def order(node: str) -> tuple[str, ...]:
        return tuple(one["nodename"] for one in ring.range(node))

    return order


def dealt(owners: Mapping[str, str], agents: Collection[str], order: Preference) -> dict[str, str]:
    """Return the new owner of each node, given the current one (empty: unowned), among these agents."""
    if not agents:
        return dict(owners)
    even = len(owners) / len(agents)
    most, least = ceil(even * (1 + SLACK)), max(min(int(even * (1 - SLACK)), int(even) - 1), 0)
    held: dict[str, set[str]] = {agent: set() for agent in agents}
    homeless = []
    for node in sorted(owners):
        if owners[node] in held:
            held[owners[node]].add(node)
        else:
            homeless.append(node)
    for left, node in zip(range(len(homeless), 0, -1), homeless, strict=True):
        poor = {agent: least - len(nodes) for agent, nodes in held.items() if len(nodes) < least}
        # Together they have capacity for all. Nodes that go to an agent with too few save a transfer later.
        up_to = most if left > sum(poor.values()) else least
        to = next(one for one in order(node) if len(held[one]) < up_to)
        held[to].add(node)
    for agent in sorted(agents, key=lambda one: (len(held[one]), one)):
        if len(held[agent]) < least:
            _fill(agent, int(even), held, order)
    for agent in sorted(agents):
        if len(held[agent]) > most:
            _shed(agent, ceil(even), held, order)
    return {node: agent for agent, nodes in held.items() for node in nodes}


def _fill(poor: str, up_to: int, held: Mapping[str, set[str]], order: Preference) -> None:
    """Give the agent nodes of agents with more than that, preferring nodes with the agent early in their
    order.
    """
    offered = sorted(
        (order(node).index(poor), node, agent)
        for agent, nodes in held.items()
        if len(nodes) > up_to
        for node in nodes
    )
    for _, node, agent in offered:
        if len(held[poor]) >= up_to:
            return
        if len(held[agent]) > up_to:
            held[agent].discard(node)
            held[poor].add(node)


def _shed(rich: str, down_to: int, held: Mapping[str, set[str]], order: Preference) -> None:
    """Give the agent's nodes to agents with less than that, preferring nodes with the agent late in their
    order.
    """
    for _, node in sorted((-order(node).index(rich), node) for node in held[rich]):
        to = next((one for one in order(node) if len(held[one]) < down_to), None)
        if len(held[rich]) <= down_to or to is None:
            return
        held[rich].discard(node)
        held[to].add(node)


def _position(key: str) -> int:
    return int.from_bytes(blake2b(str(key).encode(), digest_size=8).digest(), "big")

"""Which of several agents is to have which free node: consistent hashing, evened out.

The ring says in which order a node would have them. As few nodes as can be change hands: who is there keeps
his, those of one who is gone go to the first of their order who has room, and only who has much too few, as
one who has just come, or much too many, is helped.
"""

from collections.abc import Callable, Collection, Mapping
from functools import cache, lru_cache
from hashlib import blake2b
from math import ceil

SLACK = 0.05  # of the even share, by which one may have more or less; a node less is always well
POINTS = 160  # of each agent on the ring

Preference = Callable[[str], tuple[str, ...]]


def preference(agents: Collection[str]) -> Preference:
    """In which order a node would have these agents: for every node another, for one always the same.

    Without one of them, the order of the others stays.
    """
    return _preference(tuple(sorted(agents)))


@lru_cache(maxsize=8)
def _preference(agents: tuple[str, ...]) -> Preference:
    from uhashring import HashRing  # only where agents share nodes is it needed

    ring = HashRing(nodes=list(agents), vnodes=POINTS, hash_fn=_position)

    @cache
    def order(node: str) -> tuple[str, ...]:
        return tuple(one["nodename"] for one in ring.range(node))

    return order


def dealt(owners: Mapping[str, str], agents: Collection[str], order: Preference) -> dict[str, str]:
    """Who is to have each of these nodes, given who has it now (empty: nobody); all among these agents."""
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
        # Together they have room for all; and who would else be helped by others' nodes gets his from these.
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
    """From those who have more than that: the nodes that would have it the soonest."""
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
    """To those who have less than that: the nodes that would have it the last."""
    for _, node in sorted((-order(node).index(rich), node) for node in held[rich]):
        to = next((one for one in order(node) if len(held[one]) < down_to), None)
        if len(held[rich]) <= down_to or to is None:
            return
        held[rich].discard(node)
        held[to].add(node)


def _position(key: str) -> int:
    return int.from_bytes(blake2b(str(key).encode(), digest_size=8).digest(), "big")

"""Owners of bare-metal nodes when agents start, stop, are disabled, or release nodes."""

import pytest
from msgspec.structs import replace

from features.shared_nodes.core.ring import RingMember, RingNode, Use, forgotten, moves, preference
from tests.support.ids import uid

POOL = "metal"
HERE = uid(1, "c")


def member(agent: str, **more: object) -> RingMember:
    return replace(RingMember(agent=agent, pool=POOL, seen=99), **more)


A, B, C = member("a"), member("b"), member("c")
DEAD = member("a", alive=False)
OFF = member("a", disabled=True)
MINE = RingNode(root=HERE, owner="a", epoch=3, version=7)
STOPS = replace(MINE, leaving="free")
GIVES = replace(MINE, leaving="all")


def only(node: RingNode, members: list[RingMember], use: Use | None = None) -> RingNode:
    changed = moves([node], members, {} if use is None else {node.root: use})
    assert len(changed) <= 1
    return changed[0] if changed else node


ALONE = [
    ("nobody's is given to whoever is there", RingNode(root=HERE), [B], None, ("b", 1, "")),
    ("so is one with an instance", RingNode(root=HERE), [B], "held", ("b", 1, "")),
    ("where nobody is, to whoever has been", RingNode(root=HERE), [DEAD], "held", ("a", 1, "")),
    ("an owner nobody knows has it no more", replace(MINE, owner="x"), [B], "held", ("b", 4, "")),
    ("who is there keeps it", MINE, [A], None, ("a", 3, "")),
    ("a free one of who is gone goes on", MINE, [DEAD, B], None, ("b", 4, "")),
    ("one with an instance waits for him", MINE, [DEAD, B], "held", ("a", 3, "")),
    ("where all is to be destroyed it goes on", MINE, [DEAD, B], "ending", ("b", 4, "")),
    ("while nobody else is there it stays", MINE, [DEAD], None, ("a", 3, "")),
    ("nor does it go to a disabled one", MINE, [DEAD, replace(B, disabled=True)], None, ("a", 3, "")),
    ("a disabled one is to stop first", MINE, [OFF, B], None, ("a", 3, "free")),
    ("but not where an instance is", MINE, [OFF, B], "held", ("a", 3, "")),
    ("nor where one is destroyed", MINE, [OFF, B], "ending", ("a", 3, "")),
    ("who has not seen that has it still", STOPS, [replace(OFF, seen=6), B], None, ("a", 3, "free")),
    ("who has seen it has stopped", STOPS, [replace(OFF, seen=7), B], None, ("b", 4, "")),
    ("so has one whose lease is over", STOPS, [replace(DEAD, seen=6), B], None, ("b", 4, "")),
    ("one that a build came to stays, under a new epoch", STOPS, [OFF, B], "held", ("a", 4, "")),
    ("also at one who is gone", STOPS, [DEAD, B], "held", ("a", 4, "")),
    ("an operator's wish counts whatever is there", GIVES, [A, B], "held", ("b", 4, "")),
    ("when it has stopped", GIVES, [replace(A, seen=6), B], "held", ("a", 3, "all")),
    ("or its lease is over", GIVES, [replace(DEAD, seen=6), B], "held", ("b", 4, "")),
    ("who is named gets it", replace(GIVES, to="c"), [A, B, C], "held", ("c", 4, "")),
    ("unless he is gone", replace(GIVES, to="b"), [A, member("b", alive=False), C], None, ("c", 4, "")),
    ("without others it waits", GIVES, [DEAD], "held", ("a", 3, "all")),
]  # fmt: skip


@pytest.mark.parametrize(
    "node, members, use, becomes", [row[1:] for row in ALONE], ids=[row[0] for row in ALONE]
)
def test_a_node_alone(
    node: RingNode, members: list[RingMember], use: Use | None, becomes: tuple[str, int, str]
) -> None:
    after = only(node, members, use)
    assert (after.owner, after.epoch, after.leaving) == becomes


def a_pool(nodes: int, *agents: str) -> list[RingNode]:
    empty = [RingNode(root=uid(number, "c")) for number in range(nodes)]
    return moves(empty, [member(agent) for agent in agents], {})


def put(nodes: list[RingNode], changed: list[RingNode]) -> list[RingNode]:
    by_root = {node.root: node for node in [*nodes, *changed]}
    return list(by_root.values())


def test_a_new_agent_gets_its_share_after_the_owners_stopped() -> None:
    nodes = a_pool(100, "a", "b")
    three = [A, B, replace(C, seen=0)]
    stopping = moves(nodes, three, {})
    assert {node.leaving for node in stopping} == {"free"}
    assert {node.owner for node in stopping} == {"a", "b"}
    assert len(stopping) == 33
    after = put(nodes, moves(put(nodes, stopping), three, {}))
    assert sum(node.owner == "c" for node in after) == 33
    assert moves(after, three, {}) == []


def test_free_nodes_of_a_dead_agent_move_and_used_nodes_wait() -> None:
    nodes = a_pool(100, "a", "b", "c")
    his = [node.root for node in nodes if node.owner == "a"]
    uses: dict[str, Use] = dict.fromkeys(his[:10], "held")
    after = put(nodes, moves(nodes, [DEAD, B, C], uses))
    assert {node.root for node in after if node.owner == "a"} == set(his[:10])
    assert {node.root for node in after if node.epoch == 2} == set(his[10:])
    back = put(after, moves(after, [A, B, C], uses))
    assert {node.root for node in back if node.owner == "a" and not node.leaving} == set(his[:10])
    freed = put(after, moves(after, [DEAD, B, C], {}))
    assert {node.owner for node in freed} == {"b", "c"}


def test_nodes_move_to_the_next_agent_on_the_ring() -> None:
    nodes = [replace(node, leaving="all") for node in a_pool(20, "a")]
    members = [OFF, B, C]
    after = moves(nodes, members, dict.fromkeys([node.root for node in nodes], "held"))
    order = preference(["b", "c"])
    assert all(node.owner == order(node.root)[0] for node in after)
    assert {node.owner for node in after} == {"b", "c"}


GONE = replace(MINE, leaving="gone")


@pytest.mark.parametrize(
    "members, forgets",
    [([replace(A, seen=6)], False), ([replace(A, seen=7)], True), ([DEAD], True), ([B], True)],
    ids=["not while its owner may take it for his", "when he knows", "when his lease is over", "without one"],
)
def test_a_deleted_node_is_removed_from_the_ring(members: list[RingMember], forgets: bool) -> None:
    assert forgotten([GONE], members) == ([HERE] if forgets else [])
    if any(member.agent == "a" for member in members):
        assert only(GONE, [*members, C]) == GONE

"""Owners of bare-metal nodes when agents start, stop, are disabled, or release nodes."""

import pytest
from msgspec.structs import replace

from features.shared_nodes.core.ring import RingMember, RingNode, Use, moves
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


def test_nodes_that_an_agent_gives_up_are_spread_over_the_others() -> None:
    held = [replace(MINE, root=uid(number, "d"), owner="b") for number in range(3)]
    given = [replace(GIVES, root=uid(number, "c")) for number in range(9)]
    uses: dict[str, Use] = {node.root: "held" for node in (*held, *given)}
    changed = moves([*held, *given], [A, B, C], uses)
    assert sorted(node.owner for node in changed) == ["b"] * 3 + ["c"] * 6

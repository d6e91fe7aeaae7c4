"""Watchers of the index are called with the roots of each change, and for everything after a reload."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.replication import KnownTree, KnownTrees, PlacementChanged, ProviderChange
from placement_worker.core.compact_trees import carried
from placement_worker.core.trees import Tree
from placement_worker.memory import FAR_AHEAD, Memory, News, Take
from tests.support.ids import uid
from tests.support.provider_trees import state, tree

ONE, TWO, THREE = (uid(number, "a") for number in (1, 2, 3))
Told = list[tuple[set[str], set[str]]]  # roots and aggregates
SHUT = RegisteredCell(name="c1", enabled=False)
EAST, WEST = Aggregate(id=uid(1, "e"), name="east"), Aggregate(id=uid(2, "e"), name="west")


class Shelf:
    def __init__(self, *trees: Tree) -> None:
        self.there = {tree.root: tree for tree in trees}
        self.said: list[Aggregate] = [EAST]
        self.cells: list[RegisteredCell] = []
        self.number = 1
        self.read: list[str] = []

    async def last(self) -> int:
        return self.number

    async def changes(self, after: int, most: int) -> News:
        return News([], False)

    async def trees(self, roots: Collection[str]) -> Mapping[str, Tree]:
        self.read += roots
        return {root: self.there[root] for root in roots}

    async def described(self) -> Iterable[Aggregate]:
        return self.said

    async def registered(self) -> Iterable[RegisteredCell]:
        return self.cells

    async def each(self, take: Take) -> None:
        await take(list(self.there.values()))


def host(number: int) -> Tree:
    return tree(state(number, None, {"VCPU": 8}))


def changed(number: int, root: str = "", *, reshaped: bool = False, **described: Any) -> PlacementChanged:
    changes = (ProviderChange(root, root, number, {"VCPU": 1}, reshaped=reshaped),) if root else ()
    return PlacementChanged(number=number, changes=changes, **described)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf(host(1), host(2))


@pytest.fixture
def memory(shelf: Shelf) -> Memory:
    return Memory(shelf)


@pytest.fixture
def heard(memory: Memory) -> Told:
    found: Told = []
    memory.watch(lambda roots, aggregates: found.append((set(roots), set(aggregates))))
    return found


async def test_watchers_receive_the_roots_of_each_change(memory: Memory, shelf: Shelf, heard: Told) -> None:
    await memory.reload()
    heard.clear()
    await memory.handle_many([changed(2, ONE)])
    await memory.handle_many([changed(3, aggregates=(WEST,))])
    shelf.there[THREE] = host(3)
    await memory.handle_many([changed(4, TWO), changed(5, THREE, reshaped=True)])
    assert heard == [({ONE}, set()), (set(), {WEST.id}), ({TWO, THREE}, set())]
    await memory.handle_many([changed(5, THREE)])
    assert len(heard) == 3  # it was known
    await memory.handle_many([changed(6, cells=(SHUT,))])
    assert heard[3:] == [(set(), {"c1"})]


async def test_before_all_has_been_read_nobody_is_told(memory: Memory, heard: Told) -> None:
    memory.learn([changed(1, ONE)], {})
    assert heard == []


async def test_a_reload_tells_of_all_there_are_and_of_all_there_were(
    memory: Memory, shelf: Shelf, heard: Told
) -> None:
    await memory.reload()
    assert heard == [({ONE, TWO}, {EAST.id})]
    shelf.cells = [SHUT]
    del shelf.there[ONE]
    shelf.there[THREE], shelf.said, shelf.number = host(3), [WEST], 9
    await memory.reload()
    assert heard[1:] == [({ONE, TWO, THREE}, {EAST.id, WEST.id, "c1"})]
    assert memory.index.cell_facts == {"c1": SHUT}
    shelf.cells = []
    await memory.reload()
    assert heard[2:] == [({TWO, THREE}, {WEST.id, "c1"})]


# Trees that come with the news of them


def with_trees(number: int, *trees: Tree) -> PlacementChanged:
    changes = tuple(ProviderChange(tree.root, tree.root, number, {}, reshaped=True) for tree in trees)
    return PlacementChanged(number=number, changes=changes, trees=carried(trees))


def sized(number: int, size: int) -> Tree:
    return tree(state(number, None, {"VCPU": size}, shape=size))


@pytest.mark.parametrize(
    ("news", "read", "sizes"),
    [
        pytest.param([with_trees(2, sized(1, 16))], [], {ONE: 16}, id="told"),
        pytest.param([changed(2, ONE, reshaped=True)], [ONE], {ONE: 8}, id="not told"),
        pytest.param(
            [with_trees(2, sized(1, 16)), changed(3, TWO, reshaped=True)],
            [TWO],
            {ONE: 16, TWO: 8},
            id="one of two told",
        ),
        pytest.param(
            [with_trees(3, sized(1, 32)), with_trees(2, sized(1, 16))], [], {ONE: 32}, id="the last counts"
        ),
        pytest.param(
            [with_trees(2, sized(1, 16)), changed(3, ONE, reshaped=True)],
            [ONE],
            {ONE: 8},
            id="the last was not told",
        ),
        pytest.param(
            [replace(with_trees(2, sized(1, 16)), trees=KnownTrees(trees=(KnownTree(ONE, "h", 7, 1),)))],
            [ONE],
            {ONE: 8},
            id="what makes no sense",
        ),
        pytest.param([with_trees(2, Tree(TWO))], [], {ONE: 8, TWO: None}, id="one that is gone"),
    ],
)
async def test_trees_in_a_change_message_are_not_read(
    memory: Memory,
    shelf: Shelf,
    news: list[PlacementChanged],
    read: list[str],
    sizes: Mapping[str, int | None],
) -> None:
    await memory.reload()
    await memory.handle_many(news)
    assert shelf.read == read
    rows = memory.index.rows
    assert {root: rows[root].capacity["VCPU"] if root in rows else None for root in sizes} == sizes


@pytest.mark.parametrize("number", [2 + FAR_AHEAD, 2**62])
async def test_a_forged_number_far_ahead_deafens_nobody(
    shelf: Shelf, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    memory = Memory(shelf)
    await memory.reload()
    forged = PlacementChanged(number=number, changes=(ProviderChange(ONE, ONE, 9, {"VCPU": 8}),))
    await memory.handle_many([forged])
    assert f"change {number} is none of placement's" in caplog.text
    assert memory.index.whole and memory.index.seen == 1
    assert memory.index.rows[ONE].free == {"VCPU": 8}
    shelf.number = 2
    await memory.handle_many([forged, changed(2, ONE)])
    assert memory.index.rows[ONE].free == {"VCPU": 7} and memory.index.seen == 2


async def test_a_forged_number_during_a_reload_is_ignored(shelf: Shelf) -> None:
    memory = Memory(shelf)
    forged = PlacementChanged(number=2**62, changes=(ProviderChange(ONE, ONE, 9, {"VCPU": 8}),))

    class Interrupted(Shelf):
        async def each(self, take: Take) -> None:
            await memory.handle_many([forged, changed(2, ONE)])
            await super().each(take)

    shelf.__class__ = Interrupted
    await memory.reload()
    assert memory.index.whole and memory.index.seen == 2
    assert memory.index.rows[ONE].free == {"VCPU": 7}


async def test_many_that_were_lost_are_believed_to_be(shelf: Shelf) -> None:
    memory = Memory(shelf)
    await memory.reload()
    shelf.number = 3 * FAR_AHEAD
    await memory.handle_many([changed(3 * FAR_AHEAD, ONE)])
    assert memory.index.rows[ONE].free == {"VCPU": 7} and not memory.index.whole

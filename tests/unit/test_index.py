"""The index of hosts: changes, reloads, and free memory that stays with the process."""

import dataclasses
import random
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from bus.aggregates import Aggregate
from bus.candidates import Ints
from bus.cells import RegisteredCell
from bus.replication import ChangesFound, KnownTree, KnownTrees, PlacementChanged, ProviderChange
from bus.reports import SHARES, Inventory
from placement_worker.core.index import Index
from placement_worker.core.row_table import FIRST_ROWS
from placement_worker.core.trees import CARRIED, CARRIED_ROOM, ROOM, ProviderState, Tree, carried, unpacked
from placement_worker.memory import FAR_AHEAD, Memory, Take, check_history
from scheduler_worker.core.host_hashes import Uints
from scheduler_worker.core.host_order import AHEAD, FIRST_PAGE, Frontier
from tests.support.ids import uid
from tests.support.placement_builders import looking_for
from tests.support.plain_search import as_way
from tests.support.provider_trees import a_query, a_world, an_index, search, state, tree


def a_tree(
    number: int,
    inventories: dict[str, Inventory] | None = None,
    used: dict[str, int] | None = None,
    traits: tuple[str, ...] = (),
    aggregates: tuple[str, ...] = (),
    cell: str = "c1",
    shape: int = 1,
) -> Tree:
    root = uid(number, "a")
    inventories = {"VCPU": Inventory(total=8)} if inventories is None else inventories
    provider = ProviderState(
        number, root, f"host-{number}", None, 1, shape, inventories, used or {}, traits, aggregates
    )
    return Tree(root, f"host-{number}", cell, f"agent-{number}", "", 1, False, (provider,))


def test_a_change_is_applied_once_and_a_gap_is_remembered() -> None:
    index = an_index([a_tree(1)])
    root = uid(1, "a")
    index.accept(1, [ProviderChange(root, root, 2, {"VCPU": 1})])
    index.accept(3, [ProviderChange(root, root, 4, {"VCPU": 3})])
    index.accept(3, [ProviderChange(root, root, 4, {"VCPU": 7})])
    assert (index.seen, index.knows(3), index.knows(2)) == (1, True, False)
    assert index.rows[root].free == {"VCPU": 5}
    index.accept(2, [ProviderChange(root, root, 3, {"VCPU": 2})])
    assert index.seen == 3
    assert index.rows[root].free == {"VCPU": 5}


def test_rows_are_used_again_and_the_arrays_grow() -> None:
    many = FIRST_ROWS + 10
    index = an_index([a_tree(number, traits=("HW_A",)) for number in range(many)])
    query = looking_for({"VCPU": 1}, required=("HW_A",), limit=5000)
    assert search(index, query).fitting == many
    for number in range(100):
        index.put(dataclasses.replace(a_tree(number), providers=()), 2)
    assert search(index, query).fitting == many - 100
    for number in range(100):
        index.put(a_tree(10_000 + number), 3)
    assert index.high == many
    assert search(index, query).fitting == many - 100
    assert search(index, looking_for({"VCPU": 1})).fitting == many


MANY = 6 * AHEAD * FIRST_PAGE


@pytest.mark.parametrize("count", [0, 1, FIRST_PAGE, 3 * FIRST_PAGE, MANY])
@pytest.mark.parametrize("levels", [1, 2, 4, 40, 10**9], ids=lambda levels: f"{levels} worths")
def test_all_pages_together_are_the_order(count: int, levels: int) -> None:
    chance = random.Random(f"{count} {levels}")
    worth = np.array([chance.randrange(levels) / 7 for _ in range(2 * count)])
    ties: Uints = np.array(chance.sample(range(10**6), 2 * count), np.uint64)
    among = np.array(sorted(chance.sample(range(2 * count), count)), np.intp)

    def its_ties(indices: Ints) -> Uints:
        return ties[indices]

    frontier, seen, pages = Frontier(worth, among, its_ties), list[int](), list[int]()
    while (page := frontier.page())[0].size:
        assert page[1].tolist() == ties[page[0]].tolist()
        seen += page[0].tolist()
        pages.append(page[0].size)
    assert seen == sorted(among.tolist(), key=lambda index: (-worth[index], ties[index]))
    assert not pages or min(pages[0], count) <= 2 * FIRST_PAGE


BATCHES = """
import resource
import numpy as np
from berth.services import keep_freed_memory

def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def work():
    arrays = [np.ones(10_000) for _ in range(40)]

keep_freed_memory()
work()
before = page_faults()
for _ in range(20):
    work()
print((page_faults() - before) // 20)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is glibc's")
def test_freed_memory_stays_with_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", BATCHES], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100  # of 800 pages


def host(number: int, *, children: int = 0, traits: int = 0) -> Tree:
    """With so many bytes of traits."""
    reply = [f"CUSTOM_{index:092}" for index in range(traits // 100)]
    some = [state(100 * number + index, number, {"CUSTOM_VF": 4}) for index in range(1, children + 1)]
    return tree(state(number, None, {"VCPU": 8}, {"VCPU": 2}, reply), *some)


def hosts(count: int) -> list[Tree]:
    return [host(number) for number in range(1, count + 1)]


def gone(number: int) -> Tree:
    return dataclasses.replace(host(number), providers=())


def as_reported(tree: Tree) -> Tree:
    return dataclasses.replace(
        tree, providers=tuple(dataclasses.replace(provider, id=0) for provider in tree.providers)
    )


@pytest.mark.parametrize(
    ("trees", "go"),
    [
        pytest.param([], False, id="none"),
        pytest.param([host(1)], True, id="one"),
        pytest.param([host(1), host(2, children=3), host(3)], True, id="some"),
        pytest.param([gone(1), host(2)], True, id="one that is gone"),
        pytest.param([host(1, children=CARRIED - 1)], True, id="as many providers as may go"),
        pytest.param([host(1, children=CARRIED)], False, id="one provider more"),
        pytest.param(hosts(CARRIED), True, id="as many hosts as may go"),
        pytest.param(hosts(CARRIED + 1), False, id="one host more"),
        pytest.param([host(1, traits=CARRIED_ROOM // 2)], True, id="a large one"),
        pytest.param([host(1, traits=CARRIED_ROOM)], False, id="one that is too large"),
        pytest.param([host(1), host(2, traits=ROOM)], False, id="one that no answer would hold, either"),
    ],
)
def test_few_small_trees_are_carried_in_the_message(trees: list[Tree], go: bool) -> None:
    packed = carried(trees)
    assert (packed is not None) == go
    if packed is not None:
        arrived = msgspec.json.decode(msgspec.json.encode(packed), type=KnownTrees)
        assert [tree for tree, left_out in unpacked(arrived) if not left_out] == list(map(as_reported, trees))


Commit = tuple[int, tuple[ProviderChange, ...], dict[str, Tree]]


class GrowingForest:
    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.trees = {one.root: one for one in a_world(chance)}
        self.number = 1
        self.fresh = 1000

    def step(self) -> Commit:
        self.number += 1
        chosen = self.chance.choice(list(self.trees))
        change = self.chance.choice(
            (self.use, self.use, self.refit, self.add, self.drop, self.move, self.part)
        )
        return change(self.trees[chosen])

    def use(self, tree: Tree) -> Commit:
        was = self.chance.choice(tree.providers)
        used = {name: self.chance.randint(0, 4) for name in was.inventories}
        now = dataclasses.replace(was, used=used, generation=self.number)
        self.trees[tree.root] = dataclasses.replace(tree, providers=_swapped(tree, now))
        return self.number, (ProviderChange(was.uuid, tree.root, self.number, used),), {}

    def refit(self, tree: Tree) -> Commit:
        was = self.chance.choice(tree.providers)
        traits = self.chance.choice((was.traits, ("CUSTOM_A",), (SHARES,), ()))
        aggregates = self.chance.choice((was.aggregates, (uid(0, "e"),), (uid(1, "e"), uid(2, "e")), ()))
        stock = dict(was.inventories) | {"VCPU": Inventory(total=self.chance.randint(1, 9))}
        used = {name: was.used.get(name, 0) for name in stock}
        now = dataclasses.replace(
            was, inventories=stock, used=used, traits=traits, aggregates=aggregates, shape=self.number
        )
        return self._reshaped(dataclasses.replace(tree, providers=_swapped(tree, now)))

    def add(self, tree: Tree) -> Commit:
        self.fresh += 1
        parent = self.chance.choice(tree.providers)
        child = dataclasses.replace(
            state(self.fresh, None, {"CUSTOM_VF": 4}, shape=self.number), parent=parent.uuid
        )
        return self._reshaped(dataclasses.replace(tree, providers=(*tree.providers, child)))

    def drop(self, tree: Tree) -> Commit:
        if len(self.trees) > 1 and self.chance.random() < 0.3:
            return self._reshaped(dataclasses.replace(tree, providers=()))
        gone = self._branch(tree, self.chance.choice(tree.providers))
        left = tuple(each for each in tree.providers if each not in gone)
        return self._reshaped(dataclasses.replace(tree, providers=left)) if left else self.use(tree)

    def move(self, tree: Tree) -> Commit:
        """Hang a branch, or the whole tree, under another tree."""
        others = [each for each in self.trees.values() if each.root != tree.root]
        if not others:
            return self.add(tree)
        into = self.chance.choice(others)
        branch = self._branch(tree, self.chance.choice(tree.providers))
        top = dataclasses.replace(
            branch[0], parent=self.chance.choice(into.providers).uuid, shape=self.number
        )
        left = tuple(each for each in tree.providers if each not in branch)
        return self._reshaped(
            dataclasses.replace(tree, providers=left),
            dataclasses.replace(into, providers=(*into.providers, top, *branch[1:])),
        )

    def part(self, one: Tree) -> Commit:
        branch = self._branch(one, self.chance.choice(one.providers))
        if branch[0].parent is None:
            return self.use(one)
        left = tuple(each for each in one.providers if each not in branch)
        top = dataclasses.replace(branch[0], parent=None, shape=self.number)
        return self._reshaped(dataclasses.replace(one, providers=left), tree(top, *branch[1:], cell=one.cell))

    def _branch(self, tree: Tree, top: ProviderState) -> list[ProviderState]:
        branch = [top]
        for each in tree.providers:
            if each.parent in {above.uuid for above in branch}:
                branch.append(each)
        return branch

    def _reshaped(self, *trees: Tree) -> Commit:
        changes = []
        for stored in trees:
            self.trees.pop(stored.root, None)
            if stored.providers:
                self.trees[stored.root] = stored
            changes += [
                ProviderChange(provider.uuid, stored.root, provider.generation, provider.used, True)
                for provider in stored.providers
            ]
        return self.number, tuple(changes), {tree.root: tree for tree in trees}


def _swapped(tree: Tree, now: ProviderState) -> tuple[ProviderState, ...]:
    return tuple(now if each.uuid == now.uuid else each for each in tree.providers)


def known_of(index: Index) -> dict[str, object]:
    def name(position: int) -> str:
        row = index.at[position]
        assert row is not None
        return row.uuid

    summary: dict[str, object] = {
        "trees": {root: set(uuids) for root, uuids in index.trees.items()},
        "first": all(root == uuids[0] for root, uuids in index.trees.items()),
        "children": index.children,
    }
    for uuid, row in index.rows.items():
        at = row.position
        summary[uuid] = (
            (row.root, row.parent, row.host, row.cell, row.agent, row.shapes, row.capacity, row.free),
            (index.roots[at], index.below[at], name(int(index.root_of[at]))),
            {trait for trait, flags in index.traits.items() if flags.mask(index.high)[at]} == set(row.traits),
            {one for one, flags in index.aggregates.items() if flags.mask(index.high)[at]}
            == set(row.aggregates),
            {one: int(kind.top[at]) for one, kind in index.classes.items() if kind.top[at]},
            {one for one, sharers in index.sharers.items() if at in sharers},
            {name(root) for root in index.reach(at).tolist()} if SHARES in row.traits else set(),
        )
    return summary


@pytest.mark.parametrize("seed", range(12))
def test_applying_changes_equals_loading_everything(seed: int) -> None:
    chance = Random(seed)
    forest = GrowingForest(chance)
    straight, shuffled = Index(1), Index(1)
    for stored in forest.trees.values():
        straight.put(stored, 1)
        shuffled.put(stored, 1)
    for _ in range(12):
        commits = [forest.step() for _ in range(chance.choice((1, 2, 3)))]
        for number, changes, trees in commits:
            straight.accept(number, changes, trees)
            known_of(straight)  # so that what is remembered of reach would be stale
        if len(commits) > 1 and chance.random() < 0.7:
            commits[0], commits[1] = commits[1], commits[0]
        for number, changes, trees in commits:
            shuffled.accept(number, changes, trees)
        assert straight.seen == shuffled.seen == forest.number
        fresh = an_index(list(forest.trees.values()))
        assert known_of(straight) == known_of(fresh)
        assert known_of(shuffled) == known_of(fresh)
        query = a_query(chance, list(forest.trees.values()))
        expected = {as_way(fit) for fit in search(fresh, query).fits}
        for index in (straight, shuffled):
            assert {as_way(fit) for fit in search(index, query).fits} == expected


def test_rare_and_common_traits_are_stored_alike() -> None:
    many = [tree(state(number, None, {"VCPU": 1}, traits=("CUSTOM_A",))) for number in range(3000)]
    rare = tree(state(5000, None, {"VCPU": 1}, traits=("CUSTOM_B",)))
    index = an_index([rare, *many])
    for trait, count in (("CUSTOM_A", 3000), ("CUSTOM_B", 1)):
        found = search(index, looking_for({"VCPU": 1}, required=(trait,), limit=10_000))
        assert (found.fitting, len(found.fits)) == (count, count)
    for one in many[5:]:
        index.put(dataclasses.replace(one, providers=()), 2)
    more = [tree(state(10_000 + number, None, {"VCPU": 1})) for number in range(8000)]
    for one in more:
        index.put(one, 3)
    for trait, count in (("CUSTOM_A", 5), ("CUSTOM_B", 1)):
        query = looking_for({"VCPU": 1}, required=(trait,))
        assert search(index, query).fitting == count
        assert search(index, replace(query, limit=1)).cut == (count > 1)


ONE, TWO = uid(1, "a"), uid(2, "a")
EAST = Aggregate(id=uid(1, "e"), name="east")


class Shelf:
    def __init__(self, *trees: Tree) -> None:
        self.there = {tree.root: tree for tree in trees}
        self.reply: list[Aggregate] = [EAST]
        self.cells: list[RegisteredCell] = []
        self.number = 1
        self.history = ""
        self.read: list[str] = []

    async def changes(self, after: int, most: int) -> ChangesFound:
        return ChangesFound(changes=(), oldest=0, last=after or self.number, history=self.history)

    async def trees(self, roots: Collection[str], history: str = "") -> Mapping[str, Tree]:
        self.read += roots
        return {root: self.there[root] for root in roots}

    async def facts(self) -> Iterable[Aggregate | RegisteredCell]:
        return [*self.reply, *self.cells]

    async def each(self, take: Take, history: str = "") -> None:
        await take(list(self.there.values()))


def a_small_host(number: int) -> Tree:
    return tree(state(number, None, {"VCPU": 8}))


def changed(number: int, root: str = "", *, reshaped: bool = False, **described: Any) -> PlacementChanged:
    changes = (ProviderChange(root, root, number, {"VCPU": 1}, reshaped=reshaped),) if root else ()
    return PlacementChanged(number=number, changes=changes, **described)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf(a_small_host(1), a_small_host(2))


@pytest.fixture
def memory(shelf: Shelf) -> Memory:
    return Memory(shelf)


# Trees that come with the news of them


def with_trees(number: int, *trees: Tree) -> PlacementChanged:
    changes = tuple(ProviderChange(tree.root, tree.root, number, {}, reshaped=True) for tree in trees)
    return PlacementChanged(number=number, changes=changes, trees=carried(trees))


def sized(number: int, size: int) -> Tree:
    return tree(state(number, None, {"VCPU": size}, shape=size))


@pytest.mark.parametrize(
    ("news", "read", "sizes"),
    [
        pytest.param([with_trees(2, sized(1, 16))], [], {ONE: 16}, id="summary"),
        pytest.param([changed(2, ONE, reshaped=True)], [ONE], {ONE: 8}, id="not summary"),
        pytest.param(
            [with_trees(2, sized(1, 16)), changed(3, TWO, reshaped=True)],
            [TWO],
            {ONE: 16, TWO: 8},
            id="one of two summary",
        ),
        pytest.param(
            [with_trees(3, sized(1, 32)), with_trees(2, sized(1, 16))], [], {ONE: 32}, id="the last counts"
        ),
        pytest.param(
            [with_trees(2, sized(1, 16)), changed(3, ONE, reshaped=True)],
            [ONE],
            {ONE: 8},
            id="the last was not summary",
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
async def test_trees_in_a_change_message_are_not_queried(
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
async def test_a_forged_change_number_is_ignored(
    shelf: Shelf, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    memory = Memory(shelf)
    await memory.reload()
    forged = PlacementChanged(number=number, changes=(ProviderChange(ONE, ONE, 9, {"VCPU": 8}),))
    await memory.handle_many([forged])
    assert f"change {number} does not exist" in caplog.text
    assert memory.index.whole and memory.index.seen == 1
    assert memory.index.rows[ONE].free == {"VCPU": 8}
    shelf.number = 2
    await memory.handle_many([forged, changed(2, ONE)])
    assert memory.index.rows[ONE].free == {"VCPU": 7} and memory.index.seen == 2


async def test_a_forged_number_during_a_reload_is_ignored(shelf: Shelf) -> None:
    memory = Memory(shelf)
    forged = PlacementChanged(number=2**62, changes=(ProviderChange(ONE, ONE, 9, {"VCPU": 8}),))

    class Interrupted(Shelf):
        async def each(self, take: Take, history: str = "") -> None:
            await memory.handle_many([forged, changed(2, ONE)])
            await super().each(take, history)

    shelf.__class__ = Interrupted
    await memory.reload()
    assert memory.index.whole and memory.index.seen == 2
    assert memory.index.rows[ONE].free == {"VCPU": 7}


@pytest.mark.parametrize("number", [2, 3, 9])  # fewer, as many or more commits than before the fail-over
async def test_after_a_failover_the_index_is_read_again(shelf: Shelf, number: int) -> None:
    """A commit of the new primary may have the number of a lost commit, which the index contains."""
    memory = Memory(shelf)
    shelf.history = "7/1"
    await memory.reload()
    await memory.handle_many([changed(2, ONE, history="7/1"), changed(3, ONE, history="7/1")])
    assert memory.index.rows[ONE].free == {"VCPU": 7} and memory.index.seen == 3
    shelf.history, shelf.number = "7/2", number
    await memory.handle_many([changed(number, TWO, history="7/2")])
    assert memory.index.seen == number and memory.index.history == "7/2"
    assert [memory.index.rows[root].free for root in (ONE, TWO)] == [{"VCPU": 8}] * 2


async def test_late_messages_about_lost_commits_are_ignored(shelf: Shelf) -> None:
    memory = Memory(shelf)
    shelf.history = "7/2"
    await memory.reload()
    late = changed(2, ONE, history="7/1")
    memory.learn([late], {})
    await memory.handle_many([late, changed(2, TWO, history="7/2")])
    assert memory.loads == 1 and memory.index.seen == 2
    assert [memory.index.rows[root].free for root in (ONE, TWO)] == [{"VCPU": 8}, {"VCPU": 7}]


async def test_trees_of_the_former_primary_are_read_again(shelf: Shelf) -> None:
    memory, tries = Memory(shelf), list[str]()

    class Late(Shelf):  # another placement does not know the new primary yet
        async def each(self, take: Take, history: str = "") -> None:
            tries.append(history)
            await super().each(take)
            check_history("7/1" if len(tries) == 1 else "7/2", history)

    shelf.__class__, shelf.history = Late, "7/2"
    await memory.reload()
    assert tries == ["7/2", "7/2"] and memory.index.history == "7/2"


async def test_many_lost_changes_lead_to_a_reload(shelf: Shelf) -> None:
    memory = Memory(shelf)
    await memory.reload()
    shelf.number = 3 * FAR_AHEAD
    await memory.handle_many([changed(3 * FAR_AHEAD, ONE)])
    assert memory.index.rows[ONE].free == {"VCPU": 7} and not memory.index.whole

"""The index of nested trees: after whatever changes, in whatever order, it is what a fresh load gives."""

from dataclasses import replace
from random import Random

import msgspec
import pytest

from bus.replication import ProviderChange
from bus.reports import Inventory
from placement_worker.core.index import Index
from placement_worker.core.row_table import SHARES
from placement_worker.core.search import search
from placement_worker.core.trees import ProviderState, Tree
from tests.support.ids import uid
from tests.support.placement_builders import looking_for
from tests.support.provider_trees import a_query, a_world, an_index, state, tree
from tests.support.search_answers import as_way

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
        now = replace(was, used=used, generation=self.number)
        self.trees[tree.root] = replace(tree, providers=_swapped(tree, now))
        return self.number, (ProviderChange(was.uuid, tree.root, self.number, used),), {}

    def refit(self, tree: Tree) -> Commit:
        was = self.chance.choice(tree.providers)
        traits = self.chance.choice((was.traits, ("CUSTOM_A",), (SHARES,), ()))
        aggregates = self.chance.choice((was.aggregates, (uid(0, "e"),), (uid(1, "e"), uid(2, "e")), ()))
        stock = dict(was.inventories) | {"VCPU": Inventory(total=self.chance.randint(1, 9))}
        used = {name: was.used.get(name, 0) for name in stock}
        now = replace(
            was, inventories=stock, used=used, traits=traits, aggregates=aggregates, shape=self.number
        )
        return self._reshaped(replace(tree, providers=_swapped(tree, now)))

    def add(self, tree: Tree) -> Commit:
        self.fresh += 1
        parent = self.chance.choice(tree.providers)
        child = replace(state(self.fresh, None, {"CUSTOM_VF": 4}, shape=self.number), parent=parent.uuid)
        return self._reshaped(replace(tree, providers=(*tree.providers, child)))

    def drop(self, tree: Tree) -> Commit:
        if len(self.trees) > 1 and self.chance.random() < 0.3:
            return self._reshaped(replace(tree, providers=()))
        gone = self._branch(tree, self.chance.choice(tree.providers))
        left = tuple(each for each in tree.providers if each not in gone)
        return self._reshaped(replace(tree, providers=left)) if left else self.use(tree)

    def move(self, tree: Tree) -> Commit:
        """Hang a branch, or the whole tree, under another tree."""
        others = [each for each in self.trees.values() if each.root != tree.root]
        if not others:
            return self.add(tree)
        into = self.chance.choice(others)
        branch = self._branch(tree, self.chance.choice(tree.providers))
        top = replace(branch[0], parent=self.chance.choice(into.providers).uuid, shape=self.number)
        left = tuple(each for each in tree.providers if each not in branch)
        return self._reshaped(
            replace(tree, providers=left), replace(into, providers=(*into.providers, top, *branch[1:]))
        )

    def part(self, one: Tree) -> Commit:
        branch = self._branch(one, self.chance.choice(one.providers))
        if branch[0].parent is None:
            return self.use(one)
        left = tuple(each for each in one.providers if each not in branch)
        top = replace(branch[0], parent=None, shape=self.number)
        return self._reshaped(replace(one, providers=left), tree(top, *branch[1:], cell=one.cell))

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

    told: dict[str, object] = {
        "trees": {root: set(uuids) for root, uuids in index.trees.items()},
        "first": all(root == uuids[0] for root, uuids in index.trees.items()),
        "children": index.children,
    }
    for uuid, row in index.rows.items():
        at = row.position
        told[uuid] = (
            (row.root, row.parent, row.host, row.cell, row.agent, row.shapes, row.capacity, row.free),
            (index.roots[at], index.below[at], name(int(index.root_of[at]))),
            {trait for trait, flags in index.traits.items() if flags.mask(index.high)[at]} == set(row.traits),
            {one for one, flags in index.aggregates.items() if flags.mask(index.high)[at]}
            == set(row.aggregates),
            {one: int(kind.top[at]) for one, kind in index.classes.items() if kind.top[at]},
            {one for one, sharers in index.sharers.items() if at in sharers},
            {name(root) for root in index.reach(at).tolist()} if SHARES in row.traits else set(),
        )
    return told


@pytest.mark.parametrize("seed", range(40))
def test_changes_lead_to_what_a_fresh_load_gives(seed: int) -> None:
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


def test_cached_wire_forms_of_a_provider_are_dropped_when_it_changes() -> None:
    root, child = state(1, None, {"VCPU": 8}), state(2, 1, {"CUSTOM_VF": 4})
    index = an_index([tree(root, child)])

    def tell() -> None:
        for row in index.rows.values():
            row.told = "told"

    def still_told() -> set[str]:
        return {row.uuid for row in index.rows.values() if row.told is not None}

    tell()
    index.use(ProviderChange(root.uuid, root.uuid, 2, {"VCPU": 3}), 2)
    assert still_told() == {child.uuid}
    tell()
    index.put(tree(root, replace(child, traits=("CUSTOM_A",), shape=2)), 3)
    assert child.uuid not in still_told()
    tell()
    other = state(9, None, {"VCPU": 1})
    index.put(tree(other, replace(root, parent=other.uuid, shape=3), replace(child, shape=3)), 4)
    assert still_told() == set()


def test_a_trait_or_aggregate_of_few_becomes_one_of_many_and_back() -> None:
    many = [tree(state(number, None, {"VCPU": 1}, traits=("CUSTOM_A",))) for number in range(3000)]
    rare = tree(state(5000, None, {"VCPU": 1}, traits=("CUSTOM_B",)))
    index = an_index([rare, *many])
    for trait, count in (("CUSTOM_A", 3000), ("CUSTOM_B", 1)):
        found = search(index, looking_for({"VCPU": 1}, required=(trait,), limit=10_000))
        assert (found.fitting, len(found.fits)) == (count, count)
    for one in many[5:]:
        index.put(replace(one, providers=()), 2)
    more = [tree(state(10_000 + number, None, {"VCPU": 1})) for number in range(8000)]
    for one in more:
        index.put(one, 3)
    for trait, count in (("CUSTOM_A", 5), ("CUSTOM_B", 1)):
        query = looking_for({"VCPU": 1}, required=(trait,))
        assert search(index, query).fitting == count
        assert search(index, msgspec.structs.replace(query, limit=1)).cut == (count > 1)

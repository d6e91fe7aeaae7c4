"""Values of hosts that follow changes are those that a new computation finds."""

from random import Random

import numpy as np
import pytest

from bus.queries import FindCandidates
from bus.replication import ProviderChange
from bus.reports import SHARES, Inventory
from bus.requests import ResourceGroup
from bus.vocabulary import Allocations
from features.fragmentation.core.host_table import HostTable
from features.fragmentation.core.values import HostValues, KnownCosts
from placement_worker.extension import Index, ProviderState, Tree
from placement_worker.testing import IndexedSource
from scheduler_worker.core.extension import Shape, UsualShapes, shape_of
from tests.support.ids import uid
from tests.support.index_source import FilledMemory
from tests.support.provider_trees import an_index, state, tree

GPU, FAST = "CUSTOM_GPU", "CUSTOM_FAST"
ASKED = FindCandidates(groups=(ResourceGroup(resources={"VCPU": 1}),))


def a_tree(chance: Random, number: int, number_of_commit: int) -> Tree:
    root = uid(100 * number)
    stocks = [{"VCPU": chance.choice((8, 16)), "MEMORY_MB": chance.choice((32, 64))}]
    stocks += [{GPU: 10}] * chance.choice((0, 1, 2, 5))
    providers = []
    for nth, stock in enumerate(stocks):
        used = {name: chance.randrange(amount) for name, amount in stock.items()}
        traits = (FAST,) if chance.random() < 0.5 else ()
        inventories = {name: Inventory(total=total) for name, total in stock.items()}
        uuid, parent = uid(100 * number + nth), None if nth == 0 else root
        shape = 1000 * number_of_commit + nth
        providers.append(
            ProviderState(nth, uuid, f"p{number}-{nth}", parent, shape, shape, inventories, used, traits, ())
        )
    return Tree(root, f"host{number}", "c1", f"agent{number}", "", 1, False, tuple(providers))


def change(chance: Random, index: Index) -> None:
    """Change the usage, or the capacities, traits and devices of a host."""
    number = index.seen + 1
    if chance.random() < 0.3:
        tree = a_tree(chance, chance.randrange(8), number)
        index.accept(number, [], {tree.root: tree})
        return
    row = chance.choice(list(index.rows.values()))
    used = {name: chance.randrange(amount) for name, amount in row.capacity.items()}
    index.accept(number, [ProviderChange(row.uuid, row.root, row.generation + 1, used)])


def choose_or_drop(chance: Random, source: IndexedSource, chosen: list[Allocations], index: Index) -> None:
    """Take amounts of a provider for a tentative choice, or give them back."""
    if chosen and chance.random() < 0.5:
        source.packing.release(chosen.pop())
        return
    row = chance.choice(list(index.rows.values()))
    chosen.append({row.uuid: {name: chance.randrange(1, amount) for name, amount in row.capacity.items()}})
    source.packing.claim(chosen[-1])


def query(chance: Random) -> FindCandidates:
    groups = [ResourceGroup(resources={"VCPU": chance.choice((1, 2)), "MEMORY_MB": 4})]
    if chance.random() < 0.6:
        required = (FAST,) if chance.random() < 0.4 else ()
        groups.append(ResourceGroup(suffix="_g", resources={GPU: chance.choice((3, 10))}, required=required))
    return FindCandidates(groups=tuple(groups))


@pytest.mark.parametrize("seed", range(4))
def test_values_that_follow_changes_are_those_of_a_new_computation(seed: int) -> None:
    chance = Random(seed)
    index = an_index([a_tree(chance, number, 0) for number in range(8)])
    source, followed = IndexedSource(FilledMemory(index)), HostValues(0.0)
    usual, chosen = UsualShapes(), list[Allocations]()
    for version in range(60):
        if version % 20 == 0:
            shapes: tuple[Shape, ...] = tuple({shape_of(query(chance)) for _ in range(4)})
            usual = UsualShapes(shapes, (1 / len(shapes),) * len(shapes), version + 1)
        if chance.random() < 0.5:
            change(chance, index)
        else:
            choose_or_drop(chance, source, chosen, index)
        asked = query(chance)
        found, new = source.search(asked), HostValues(0.0)
        followed.follow(found.providers(), usual, shape_of(asked))
        new.table.follow(found.providers(), followed.table.classes, [])
        new.follow(found.providers(), usual, shape_of(asked))
        new.shapes = followed.shapes  # the average host is computed again only for new usual shapes
        new.reshape()
        of_new, of_followed = (
            each.best_of(shape_of(asked), each.slots(found.positions)) for each in (new, followed)
        )
        assert np.allclose(of_followed, of_new)


def test_a_host_with_many_devices_does_not_widen_the_arrays_of_others() -> None:
    wide = state(2, None, {"VCPU": 8}), *(state(n, 2, {GPU: 10}) for n in range(10, 50))
    index = an_index([tree(state(1, None, {"VCPU": 8})), tree(*wide), tree(state(3, None, {"VCPU": 8}))])
    table = HostTable()
    table.follow(IndexedSource(FilledMemory(index)).search(ASKED).providers(), ["VCPU", GPU], [])
    assert [group.rows.shape for group in table.groups] == [(2, 1), (1, 41)]
    assert [group.free.sum(axis=(0, 1)).tolist() for group in table.groups] == [[0.0, 16.0], [400.0, 8.0]]


def test_a_shape_that_needs_a_pool_fits_on_the_hosts_of_the_pool() -> None:
    pool = state(9, None, {"DISK_GB": 100}, traits=(SHARES,), aggregates=(1,))
    hosts = [state(1, None, {"VCPU": 8}, aggregates=(1,)), state(2, None, {"VCPU": 8})]
    source = IndexedSource(FilledMemory(an_index([tree(each) for each in (pool, *hosts)])))
    asked = FindCandidates(groups=(ResourceGroup(resources={"VCPU": 2, "DISK_GB": 10}),))
    found, values = source.search(asked), HostValues(0.0)
    values.follow(found.providers(), UsualShapes((shape_of(asked),), (1.0,), 1), shape_of(asked))
    assert found.positions.size == 1
    (served,) = values.best_of(shape_of(asked), values.slots(found.positions))
    assert served < -0.1  # one copy less fits than before


def test_in_a_flood_the_costs_of_all_changed_hosts_are_computed_in_turn() -> None:
    costs = KnownCosts(np.arange(100.0), np.ones(100, np.bool_), 0)
    fitting = np.arange(10, 100)
    first = set(costs.renewable(fitting, 20).tolist())
    assert first == {*range(90, 100), *range(10, 20)}  # the highest former costs, and the first in turn
    rounds = [set(costs.renewable(fitting, 20).tolist()) for _ in range(4)]
    assert set.union(first, *rounds) == set(range(10, 100))
    assert not costs.pending[fitting].any()
    assert costs.pending[:10].all()


def followed(index: Index, asked: FindCandidates, *usual: Shape) -> HostValues:
    values = HostValues(spread=0.02)
    found = IndexedSource(FilledMemory(index)).search(asked)
    values.follow(found.providers(), UsualShapes(usual, (1 / len(usual),) * len(usual), 1), shape_of(asked))
    return values


def test_usual_shapes_of_classes_that_no_provider_has_count_nothing() -> None:
    unknown = [
        shape_of(FindCandidates(groups=(ResourceGroup(resources={"VCPU": 1, f"CUSTOM_X{n}": 1}),)))
        for n in range(2000)
    ]
    values = followed(an_index([tree(state(1, None, {"VCPU": 8}))]), ASKED, shape_of(ASKED), *unknown[:31])
    assert values.table.classes == ("VCPU",)
    assert values.shapes is not None
    assert values.shapes.weights.tolist() == [pytest.approx(1 / 8 / 32), *[0.0] * 31]


def test_a_rare_class_that_is_used_up_does_not_end_the_spreading() -> None:
    node = FindCandidates(groups=(ResourceGroup(resources={"CUSTOM_NODE": 1}),))
    hosts = tree(state(1, None, {"VCPU": 100})), tree(state(2, None, {"CUSTOM_NODE": 1}, {"CUSTOM_NODE": 1}))
    index = an_index(hosts)
    usual = UsualShapes((shape_of(ASKED), shape_of(node)), (0.95, 0.05), 1)
    found = IndexedSource(FilledMemory(index)).search(ASKED)
    values = HostValues(spread=0.02)
    values.follow(found.providers(), usual, shape_of(ASKED))
    (cost,) = values.best_of(shape_of(ASKED), values.slots(found.positions))
    assert cost == pytest.approx(0.02 * 0.99)  # the least free share after it; nothing else counts


@pytest.mark.parametrize("spread", [0.0, 0.02])
def test_costs_of_further_instances_are_those_of_the_host_with_the_first_ones(spread: float) -> None:
    chance = Random(3)
    amounts = {"VCPU": 2, "MEMORY_MB": 5}
    query = FindCandidates(groups=(ResourceGroup(resources=amounts),))
    used = [{"VCPU": chance.randrange(9), "MEMORY_MB": chance.randrange(20)} for _ in range(30)]
    hosts = [tree(state(n, None, {"VCPU": 32, "MEMORY_MB": 64}, used[n])) for n in range(30)]
    found, values = IndexedSource(FilledMemory(an_index(hosts))).search(query), HostValues(spread)
    shape = shape_of(query)
    usual = (shape, shape_of(FindCandidates(groups=(ResourceGroup(resources={"VCPU": 7, "MEMORY_MB": 20}),))))
    values.follow(found.providers(), UsualShapes(usual, (0.5, 0.5), 1), shape)
    if values.scarcity is not None:
        values.scarcity.of_shapes, values.scarcity.overall = np.array([0.4, 0.9]), 0.6
        values._value_by_scarcity()
    slots = values.slots(found.positions)
    values.best_of(shape, slots)
    costs = values.next_costs_of(shape, slots)
    assert costs is not None
    assert costs.of(0, {}) is None  # nothing is expected yet
    costs.expect(list(range(slots.size)))
    for index, position in enumerate(found.positions.tolist()):
        (provider,), (way,) = found.tree(position), found.ways(position, 1)
        for several in range(6):
            free = {name: left - several * amounts[name] for name, left in provider.free.items()}
            cost = costs.of(index, free)
            assert (cost is None) == (several == 5)
            if cost is not None and min(left - amounts[name] for name, left in free.items()) >= 0:
                assert [cost] == values.of_ways((provider._replace(free=free),), (way,))

"""The candidate search inside a scheduler's process, with reservations."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from bus.candidates import CandidateSource, OnChange, OnWakes
from bus.queries import FindCandidates
from bus.replication import ProviderChange
from bus.requests import ResourceGroup
from bus.vocabulary import Allocations
from placement_worker import memory as sourcing
from placement_worker.core.fits import BREATH, Fit, FitFinder
from placement_worker.core.index import Index, Row
from placement_worker.core.trees import ProviderState, Tree
from placement_worker.memory import HostSearch, IndexedSource
from tests.support.ids import uid
from tests.support.plain_search import PlainSearch, Way, taken, way
from tests.support.provider_trees import (
    AGGREGATES,
    CLASSES,
    SHARES,
    TRAITS,
    ZONES,
    a_query,
    a_world,
    an_index,
    in_zones,
    narrowed,
    state,
    tree,
    with_zones,
)
from tests.support.provider_trees import tree as a_tree

MANY = 100_000
WORLDS, QUERIES = 60, 10


class Remembered:
    """An index, as a memory keeps one."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.watchers: list[OnChange] = []

    def watch_wakes(self, on_wakes: OnWakes) -> None: ...

    def watch(self, on_change: OnChange) -> None:
        self.watchers.append(on_change)

    async def fresh(self) -> None: ...


def source_of(trees: Sequence[Tree]) -> IndexedSource:
    return IndexedSource(Remembered(with_zones(an_index(trees))))


def offered(search: HostSearch, query: FindCandidates) -> dict[str, list[Way]]:
    """Root → all ways there."""
    sent = {}
    for position in search.positions.tolist():
        ways = search.ways(position, MANY)
        if ways:
            sent[search.host(position).uuid] = [
                way(
                    taken(candidate.allocations),
                    candidate.mappings
                    or {group.suffix: list(candidate.allocations) for group in query.groups},
                )
                for candidate in ways
            ]
    return sent


def test_the_source_equals_an_exhaustive_search() -> None:
    chance, fruitful = Random(1), 0
    for _ in range(WORLDS):
        world = in_zones(chance, a_world(chance))
        plain, source = PlainSearch(world, ZONES), source_of(world)
        for _ in range(QUERIES):
            query = narrowed(chance, a_query(chance, world), world)
            expected = plain.by_anchor(query)
            found = offered(source.search(query), query)
            for root, ways in found.items():
                assert set(ways) <= expected[root], query
                assert len(ways) == len({allocations for allocations, _ in ways})
            everything = {allocations for ways in found.values() for allocations, _ in ways}
            assert everything == {allocations for ways in expected.values() for allocations, _ in ways}, query
            fruitful += bool(everything)
    assert fruitful > WORLDS * QUERIES // 8


def some_promises(chance: Random, trees: Sequence[Tree]) -> list[Allocations]:
    made: list[Allocations] = []
    for host_tree in trees:
        for provider in host_tree.providers:
            given = {name: chance.choice((1, 1, 2)) for name in provider.inventories if chance.random() < 0.4}
            if given:
                made.append({provider.uuid: given})
    return made


def used_too(trees: Sequence[Tree], reserved_amounts: Sequence[Allocations]) -> list[Tree]:
    """The trees once all that was promised is really used."""
    more: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for allocations in reserved_amounts:
        for uuid, resources in allocations.items():
            more[uuid].update(resources)

    def used(provider: ProviderState) -> ProviderState:
        amounts = {name: amount + more[provider.uuid][name] for name, amount in provider.used.items()}
        return replace(provider, used=amounts)

    return [replace(tree, providers=tuple(map(used, tree.providers))) for tree in trees]


def same_answers(source: CandidateSource, other: CandidateSource, query: FindCandidates) -> None:
    mine, theirs = source.search(query), other.search(query)
    assert mine.positions.tolist() == theirs.positions.tolist(), query
    for name in (*CLASSES, "CUSTOM_NONE"):
        assert mine.free(name).tolist() == theirs.free(name).tolist()
        assert mine.capacity(name).tolist() == theirs.capacity(name).tolist()
    for position in mine.positions.tolist():
        assert mine.amounts(position) == theirs.amounts(position)
        assert mine.ways(position, MANY) == theirs.ways(position, MANY)
    assert mine.removals() == theirs.removals()
    assert mine.nearest() == theirs.nearest()


def test_reserved_amounts_count_as_used() -> None:
    chance = Random(2)
    for _ in range(WORLDS):
        world = in_zones(chance, a_world(chance))
        reserved_amounts = some_promises(chance, world)
        beside, really = source_of(world), source_of(used_too(world, reserved_amounts))
        for promise in reserved_amounts:
            beside.packing.claim(promise)
        queries = [a_query(chance, world) for _ in range(QUERIES // 2)]
        for query in queries:
            same_answers(beside, really, query)
        for promise in reserved_amounts:
            beside.packing.release(promise)
        for query in queries:
            same_answers(beside, source_of(world), query)


def test_arrays_agree_with_single_hosts() -> None:
    chance = Random(3)
    for _ in range(WORLDS // 2):
        world = a_world(chance)
        source = source_of(world)
        for promise in some_promises(chance, world):
            source.packing.claim(promise)
        for _ in range(QUERIES // 2):
            search = source.search(a_query(chance, world))
            hosts = [search.host(position) for position in search.positions.tolist()]
            both = [search.amounts(host.position) for host in hosts]
            for name in CLASSES:
                assert search.free(name).tolist() == [free.get(name, 0) for free, _ in both]
                assert search.capacity(name).tolist() == [whole.get(name, 0) for _, whole in both]
            for trait in TRAITS:
                assert search.has(trait).tolist() == [trait in host.traits for host in hosts]
            for uuid in (*AGGREGATES, uid(77, "e")):
                assert search.within(uuid).tolist() == [uuid in host.aggregates for host in hosts]
            for position in search.positions.tolist():
                assert all(
                    way.free == search.amounts(position)[0]
                    and way.aggregates == search.host(position).aggregates
                    for way in search.ways(position, MANY)
                )


def test_reservations_after_a_search_count_in_its_results() -> None:
    chance, lost = Random(4), 0
    for _ in range(2 * WORLDS):
        world = a_world(chance)
        reserved_amounts = some_promises(chance, world)
        source, really = source_of(world), source_of(used_too(world, reserved_amounts))
        query = a_query(chance, world)
        search = source.search(query)
        for promise in reserved_amounts:
            source.packing.claim(promise)
        expected = offered(really.search(query), query)
        found = offered(search, query)
        assert {one for ways in found.values() for one in ways} <= {
            one for ways in expected.values() for one in ways
        }
        if not found and len(search.positions):
            lost += 1
            removals = search.removals()
            assert removals[-1].left == 0 and search.nearest()
    assert lost > 1


def test_released_reservations_do_not_count_in_reasons() -> None:
    source = source_of([a_tree(state(1, inventories={"VCPU": 8}))])
    search = source.search(FindCandidates(groups=(ResourceGroup(resources={"VCPU": 5}),)))
    promised = {uid(1, "a"): {"VCPU": 5}}
    source.packing.claim(promised)
    assert not search.ways(int(search.positions[0]), 1)
    assert [removal.removed for removal in search.removals()] == [1]
    source.packing.release(promised)
    assert (list(search.removals()), list(search.nearest())) == ([], [])


def test_a_reservation_counts_on_a_provider_with_removed_classes() -> None:
    index = an_index([a_tree(state(0), state(1, 0, {"VCPU": 8}))])
    change = ProviderChange(uid(1, "a"), uid(0, "a"), 2, {"CUSTOM_GONE": 2})
    index.accept(index.seen + 100, [change])
    source = IndexedSource(Remembered(index))
    search = source.search(FindCandidates(groups=(ResourceGroup(resources={"VCPU": 8}),)))
    (position,) = search.positions.tolist()
    assert search.ways(position, 1)
    source.packing.claim({uid(1, "a"): {"VCPU": 1}})
    assert search.amounts(position)[0] == {"VCPU": 7}
    assert search.ways(position, 1) == ()


def hopeless(number: int) -> Tree:
    children = (state(number + nth, number, {"CUSTOM_VF": 4}) for nth in range(1, 400))
    return a_tree(state(number), *children)


def test_a_fruitless_search_is_limited_and_reports_unexamined_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    suffixes = tuple(f"_{nth}" for nth in range(8))
    question = FindCandidates(
        groups=tuple(ResourceGroup(suffix=suffix, resources={"CUSTOM_VF": 3}) for suffix in suffixes),
        same_subtree=(suffixes,),
        group_policy="isolate",
    )
    monkeypatch.setattr(sourcing, "HOST_PATIENCE", 1024)
    monkeypatch.setattr(sourcing, "PATIENCE", 4096)
    roomy = a_tree(
        state(90_000, None, {"CUSTOM_VF": 4}),
        *(state(90_000 + n, 90_000, {"CUSTOM_VF": 4}) for n in range(1, 9)),
    )
    trees = [hopeless(number * 1000) for number in range(30)]
    trees.insert(8, roomy)
    search = source_of(trees).search(question)
    spent = count_breaths(monkeypatch)
    offers = {search.host(at).uuid: len(search.ways(at, 1)) for at in search.positions.tolist()}
    assert sum(spent) * BREATH <= 2 * 4096 + 2 * 1024
    assert [root for root, several in offers.items() if several] == [roomy.root]
    *_, removal = search.removals()
    assert (removal.code, removal.removed, removal.left) == ("unseen", 30, 1)


def count_breaths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    spent: list[int] = []
    fits = FitFinder.fits

    def counted(self: FitFinder, anchor: Row, **more: Any) -> Iterator[Fit | None]:
        for fit in fits(self, anchor, **more):
            spent.append(fit is None)
            yield fit

    monkeypatch.setattr(FitFinder, "fits", counted)
    return spent


def test_reservations_survive_a_growing_or_new_index() -> None:
    chance = Random(5)
    for _ in range(WORLDS // 2):
        world = a_world(chance)
        reserved_amounts = some_promises(chance, world)
        query = a_query(chance, world)
        memory = Remembered(with_zones(an_index(world[1:])))
        source = IndexedSource(memory)
        source.search(query)
        for promise in reserved_amounts:
            source.packing.claim(promise)
        source.search(query)
        layout = source.layout
        memory.index.put(world[0], 2)
        really = IndexedSource(
            Remembered(with_zones(an_index(used_too([*world[1:], world[0]], reserved_amounts))))
        )
        same_answers(source, really, query)
        assert source.layout > layout
        layout = source.layout
        memory.index = with_zones(an_index(world))  # at other positions
        same_answers(source, source_of(used_too(world, reserved_amounts)), query)
        assert source.layout > layout


@pytest.mark.parametrize(
    ("fields", "moves"),
    [
        ({"agent": "another"}, True),
        ({"cell": "another"}, True),
        ({"host": "another"}, True),
        ({"zone": "another"}, False),
        ({}, False),
    ],
)
def test_a_host_that_gets_another_agent_cell_or_name_counts_as_moved(
    fields: dict[str, Any], moves: bool
) -> None:
    world = a_world(Random(7))
    memory = Remembered(an_index(world))
    source = IndexedSource(memory)
    layout = source.layout
    memory.index.put(replace(world[0], **fields), 2)
    assert (source.layout > layout) == moves


def test_seen_size_position_and_names() -> None:
    chance = Random(6)
    world = a_world(chance)
    source = source_of(world)
    assert source.seen == 0 and source.size == sum(len(tree.providers) for tree in world)
    assert {host.uuid for host in source.hosts()} == {tree.root for tree in world}
    for host in source.hosts():
        assert source.position(host.uuid) == host.position
        assert source.named(host.uuid) == source.named(host.host) == (host.uuid,)
    assert source.position(uid(99, "a")) is None and source.named("nobody") == ()
    assert source.aggregates.keys() == ZONES.keys()
    child = next(provider for tree in world for provider in tree.providers if provider.parent)
    assert source.position(child.uuid) is None and source.named(child.uuid) == ()


def test_hosts_with_the_same_name_are_all_found() -> None:
    chance = Random(7)
    first, second, *_ = (tree for _ in range(9) for tree in a_world(chance) if len(tree.providers) == 1)
    one = replace(first, host="twin")
    provider = replace(second.providers[0], uuid=uid(50, "a"))
    other = replace(second, root=uid(50, "a"), host="twin", providers=(provider,))
    index = an_index([one, other])
    source = IndexedSource(Remembered(index))
    assert source.named("twin") == (one.root, other.root)
    index.put(replace(other, host="sole"), 2)
    assert (source.named("twin"), source.named("sole")) == ((one.root,), (other.root,))
    index.put(replace(other, providers=()), 3)
    assert source.named("sole") == ()


def test_a_commit_reports_the_changed_roots() -> None:
    chance = Random(8)
    world = next(made for _ in range(99) if len(made := a_world(chance)) > 1 and len(made[0].providers) > 1)
    index = an_index(world)
    one = world[0].providers[-1]
    change = ProviderChange(one.uuid, world[0].root, 2, dict(one.used))
    assert set(index.accept(1, (change,))) == {world[0].root}
    assert not index.accept(1, (change,)), "known"
    moved = replace(world[1], providers=(*world[1].providers, replace(one, parent=world[1].root)))
    change = ProviderChange(one.uuid, world[1].root, 3, dict(one.used), reshaped=True)
    assert set(index.accept(2, (change,), {world[1].root: moved})) == {world[0].root, world[1].root}


def test_a_class_exists_while_a_provider_has_it() -> None:
    one, other = (
        a_tree(state(0, None, {"VCPU": 8, "VGPU": 1}, {"VGPU": 1})),
        a_tree(state(1, None, {"VCPU": 8})),
    )
    index = an_index([one, other])
    question = FindCandidates(groups=(ResourceGroup(resources={"VCPU": 1}),))

    def any_of(name: str) -> bool:
        return IndexedSource(Remembered(index)).search(question).any_of(name)

    assert (index.classes["VCPU"].providers, index.classes["VGPU"].providers) == (2, 1)
    assert (any_of("VCPU"), any_of("VGPU"), any_of("PCPU")) == (True, True, False)
    index.put(a_tree(state(0, None, {"VCPU": 8}, shape=2)), 100)
    assert (index.classes["VCPU"].providers, index.classes["VGPU"].providers) == (2, 0)
    assert (any_of("VCPU"), any_of("VGPU")) == (True, False)
    index.put(replace(other, providers=()), 101)
    assert index.classes["VCPU"].providers == 1


WAITING_WORLDS, WAITING_QUERIES = 60, 5


def emptied(world: Sequence[Tree]) -> list[Tree]:
    return [
        replace(tree, providers=tuple(replace(p, used=dict.fromkeys(p.used, 0)) for p in tree.providers))
        for tree in world
    ]


def test_a_search_without_usage_finds_all_fitting_hosts() -> None:
    chance, more = Random(4), 0
    for _ in range(WAITING_WORLDS):
        world = a_world(chance)
        source, empty = source_of(world), source_of(emptied(world))
        for _ in range(WAITING_QUERIES):
            query = a_query(chance, world)
            found = offered(source.search(query, empty=True), query)
            assert found == offered(empty.search(query), query)
            more += len(found) > len(offered(source.search(query), query))
    assert more > 3


def test_free_amounts_of_a_root_ignore_reservations() -> None:
    world = [
        tree(state(1, None, {"VCPU": 8}, {"VCPU": 3}), state(2, 1, {"VCPU": 4, "DISK_GB": 9})),
        tree(state(3, None, {"VCPU": 2})),
    ]
    source = source_of(world)
    source.packing.claim({uid(3, "a"): {"VCPU": 2}})
    assert source.free(uid(1, "a")) == {"VCPU": 9, "DISK_GB": 9}
    assert source.free(uid(3, "a")) == {"VCPU": 2}
    assert source.free(uid(2, "a")) == {}  # no root
    assert [source.having("VCPU", amount) for amount in (2, 5, 6)] == [3, 1, 0]


def test_sharing_providers_are_known_with_their_amounts() -> None:
    pool = state(5, 4, {"DISK_GB": 9}, traits=(SHARES,), aggregates=(1, 2))
    source = source_of([tree(state(4), pool), tree(state(6, None, {"VCPU": 1}))])
    assert source.sharing == {uid(4, "a"): {"DISK_GB"}}


ROOT, CHILD = uid(1, "a"), uid(2, "a")


@pytest.mark.parametrize(
    ("change", "sent"),
    [
        (ProviderChange(CHILD, ROOT, 2, {"VCPU": 3}), False),  # more is used
        (ProviderChange(CHILD, ROOT, 2, {"VCPU": 2}), False),
        (ProviderChange(CHILD, ROOT, 2, {"VCPU": 1}), True),
        (ProviderChange(CHILD, ROOT, 2, {}), True),
        (ProviderChange(CHILD, ROOT, 2, {"VCPU": 3, "DISK_GB": 0}), True),
        (ProviderChange(CHILD, ROOT, 2, {"VCPU": 3}, reshaped=True), True),
    ],
)
def test_only_gained_capacity_and_changed_traits_are_reported(change: ProviderChange, sent: bool) -> None:
    used = {"VCPU": 2, "DISK_GB": 1} if "DISK_GB" in change.used else {"VCPU": 2}
    world = tree(state(1), state(2, 1, dict.fromkeys(used, 4), used))
    memory = Remembered(an_index([world]))
    source, events = IndexedSource(memory), list[str]()
    source.watch_for_more(lambda roots, aggregates: events.extend(roots))
    memory.watchers[0]((), ())
    for number in (2, 3):  # the second time nothing is new
        tell(memory, number, change)
    assert events == ([ROOT] if sent else [])
    memory.index = Index()
    memory.watchers[0]((ROOT,), ())  # read all anew
    assert events[-1] == ROOT


def tell(memory: Remembered, number: int, change: ProviderChange) -> None:
    if number == 3:
        change = ProviderChange(CHILD, ROOT, 2, dict(memory.index.rows[CHILD].used))
    roots = memory.index.accept(number, (change,))
    memory.watchers[0](tuple(roots), ())

"""The candidate search inside a scheduler's process, with reservations."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from bus.candidates import CandidateSource
from bus.queries import FindCandidates
from bus.replication import ProviderChange
from bus.requests import ResourceGroup
from bus.vocabulary import Allocations
from placement_worker import indexed_source as sourcing
from placement_worker.core.assignment import BREATH
from placement_worker.core.fits import Fit, FitFinder
from placement_worker.core.index_rows import Row
from placement_worker.core.trees import ProviderState, Tree
from placement_worker.indexed_source import HostSearch, IndexedSource
from tests.support.ids import uid
from tests.support.index_source import Remembered
from tests.support.plain_search import PlainSearch, Way, taken, way
from tests.support.provider_trees import (
    AGGREGATES,
    CLASSES,
    TRAITS,
    ZONES,
    a_query,
    a_world,
    an_index,
    in_zones,
    narrowed,
    state,
    with_zones,
)
from tests.support.provider_trees import tree as a_tree

MANY = 100_000
WORLDS, QUERIES = 60, 10


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
    chance, fruitful = Random(2), 0
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

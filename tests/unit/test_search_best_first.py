"""Ordered candidates over the bus: best first over all fitting hosts, page by page, with the scale."""

from collections.abc import Iterable, Sequence
from random import Random

import pytest
from msgspec import structs

from bus.queries import Candidate, CandidatesFound, FindCandidates, OrderBy
from bus.replication import ProviderChange
from bus.reports import Inventory
from bus.requests import ResourceGroup
from placement_worker.core import host_order
from placement_worker.core import search as searching
from placement_worker.core.index import Index
from placement_worker.core.search import page
from placement_worker.core.search_plan import plan
from placement_worker.core.snapshot import Snapshot
from placement_worker.core.trees import Tree
from tests.support.ids import uid
from tests.support.plain_search import PlainSearch
from tests.support.provider_trees import (
    CLASSES,
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

WORLDS, QUERIES, MANY = 120, 8, 10_000


def some_order(chance: Random) -> tuple[OrderBy, ...]:
    return tuple(
        OrderBy(
            resource_class=chance.choice((*CLASSES, "CUSTOM_NONE")),
            of=chance.choice(("free", "total")),
            multiplier=chance.choice((1.0, -1.0, 0.5, 2.0, 0.0)),
            lowest=chance.choice((None, None, 0.0, 2.0)),
            highest=chance.choice((None, None, None, 5.0)),
        )
        for _ in range(chance.choice((1, 1, 2, 3)))
    )


def amount(tree: Tree, order: OrderBy) -> float:
    total = 0
    for provider in tree.providers:
        if (stock := provider.inventories.get(order.resource_class)) is not None:
            free = stock.capacity - provider.used.get(order.resource_class, 0)
            total += (
                stock.capacity if order.of == "total" else free if len(tree.providers) == 1 else max(free, 0)
            )
    return total


def plainly_scored(trees: Sequence[Tree], order: Iterable[OrderBy]) -> tuple[list[float], list[OrderBy]]:
    scores, scale = [0.0] * len(trees), []
    for by in order:
        amounts = [amount(tree, by) for tree in trees]
        low = min(amounts) if by.lowest is None else by.lowest
        high = max(amounts) if by.highest is None else by.highest
        scale.append(structs.replace(by, lowest=low, highest=high))
        for position, value in enumerate(amounts):
            if high > low:
                scores[position] += by.multiplier * (min(max(value, low), high) - low) / (high - low)
    return scores, scale


def all_in_order(index: Index, query: FindCandidates) -> list[CandidatesFound]:
    """Every page, each asked for with the scale of the first."""
    pages = [page(index, query)]
    while (more := pages[-1].more) is not None:
        assert len(pages) < 100
        pages.append(page(index, structs.replace(query, after=more, order=pages[0].order)))
    return pages


@pytest.mark.parametrize("seed", range(3))
def test_the_best_come_first_as_a_plain_evaluation_has_them(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_order, "FIRST", 2)  # so that few hosts are put in order in several goes
    chance, orders = Random(seed), 0
    for _ in range(WORLDS):
        # What is shared is offered at one host of many: see below.
        world = in_zones(chance, a_world(chance, more=7, nobody_shares=True))
        plain, index = PlainSearch(world, ZONES), with_zones(an_index(world))
        for _ in range(QUERIES):
            query = structs.replace(
                narrowed(chance, a_query(chance, world), world), order=some_order(chance), per_host=1, limit=1
            )
            expected = plain.by_anchor(query)
            pages = all_in_order(index, query)
            told = [candidate.root for found in pages for candidate in found.candidates]
            assert len(told) == len(set(told))
            assert set(told) == {root for root, ways in expected.items() if ways}, query
            scale = pages[0].order
            assert all(found.order == scale for found in pages)
            fitting = [tree for tree in world if expected[tree.root]]
            if not fitting:
                continue
            scores, used = plainly_scored(fitting, scale)
            score_of = dict(zip((tree.root for tree in fitting), scores, strict=True))
            if len(told) == plan(Snapshot(index), query).count:
                assert list(scale) == plainly_scored(fitting, query.order)[1]
            assert [score_of[root] for root in told] == pytest.approx(sorted(scores, reverse=True)), query
            assert used == list(scale)
            orders += len(told) > 1
    assert orders > 100


def test_a_shared_provider_is_offered_once_in_ordered_pages() -> None:
    chance = Random(9)
    for _ in range(WORLDS):
        world = a_world(chance)
        plain, index = PlainSearch(world), an_index(world)
        for _ in range(QUERIES):
            query = structs.replace(a_query(chance, world), order=some_order(chance), limit=MANY)
            told = [(candidate.allocations, candidate.mappings) for candidate in candidates(index, query)]
            assert len(told) == len(set(map(str, told))) == len(plain.search(query))
            query = structs.replace(query, per_host=1, limit=chance.choice((1, 2, 9)))
            roots = [candidate.root for candidate in candidates(index, query)]
            assert len(roots) == len(set(roots))


def candidates(index: Index, query: FindCandidates) -> list[Candidate]:
    return [candidate for found in all_in_order(index, query) for candidate in found.candidates]


def flat(count: int, of: int = 64) -> Index:
    return an_index([tree(state(number, None, {"VCPU": of})) for number in range(count)])


def use(index: Index, number: int, position: int, used: int) -> None:
    index.accept(number, (ProviderChange(uid(position, "a"), uid(position, "a"), number, {"VCPU": used}),))


def fullest(limit: int, **more: object) -> FindCandidates:
    group = ResourceGroup(resources={"VCPU": 1})
    order = (OrderBy(resource_class="VCPU", multiplier=-1.0),)
    return structs.replace(FindCandidates(groups=(group,), limit=limit, order=order), **more)


def test_of_600_hosts_the_fullest_that_fits_is_always_first() -> None:
    index, chance, free = flat(600), Random(5), dict.fromkeys(range(600), 64)
    for number in range(2, 2000):
        (first,) = page(index, fullest(1, seed=f"s{number}")).candidates
        position = int(first.root[-12:])
        assert free[position] == min(some for some in free.values() if some > 0)
        if chance.random() < 0.2:
            position = chance.randrange(600)
        if free[position]:
            free[position] -= 1
            use(index, number, position, 64 - free[position])


def test_hosts_alike_come_in_an_order_by_the_seed() -> None:
    index = flat(300)
    told = [
        [candidate.root for candidate in page(index, fullest(300, seed=f"s{n}")).candidates]
        for n in range(40)
    ]
    assert len({tuple(some) for some in told}) == 40
    assert all(len(set(some)) == 300 for some in told)
    assert len({some[0] for some in told}) > 30
    again = [candidate.root for candidate in page(index, fullest(300, seed="s7")).candidates]
    assert again == told[7]


def test_pages_join_up_while_hosts_change_as_long_as_they_name_the_scale() -> None:
    chance = Random(11)
    for _ in range(20):
        index, number = flat(200), 1
        for position in range(200):
            number += 1
            use(index, number, position, chance.randrange(60))
        told: list[str] = []
        query, changed = fullest(16, seed="x"), set()
        while True:
            found = page(index, query)
            told += [candidate.root for candidate in found.candidates]
            if found.more is None:
                break
            query = structs.replace(query, after=found.more, order=found.order)
            for position in chance.sample(range(200), 5):
                number += 1
                use(index, number, position, chance.randrange(64))
                changed.add(uid(position, "a"))
        steady = [root for root in told if root not in changed]
        assert len(steady) == len(set(steady)) == 200 - len(changed)


def test_an_order_is_paged_by_bytes_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "PAGE_BYTES", 2000)
    index = flat(50)
    pages = all_in_order(index, fullest(50))
    assert len(pages) > 5
    assert len({candidate.root for found in pages for candidate in found.candidates}) == 50


def test_a_scale_of_huge_amounts_and_of_equal_ones() -> None:
    huge = Inventory(total=2**31 - 1, allocation_ratio=3.4e38)
    world = [tree(state(n, None, {"VCPU": huge if n % 2 else 4})) for n in range(9)]
    first = page(an_index(world), structs.replace(fullest(9), order=(OrderBy(resource_class="VCPU"),)))
    assert [int(candidate.root[-12:]) % 2 for candidate in first.candidates] == [1] * 4 + [0] * 5
    assert len(page(flat(9), fullest(9)).candidates) == 9


def test_candidates_tell_the_aggregates_of_their_root() -> None:
    child = state(2, 1, {"CUSTOM_VF": 1}, aggregates=[3])
    world = tree(state(1, None, {"VCPU": 4}, aggregates=[1, 2]), child)
    (one,) = page(an_index([world]), fullest(1)).candidates
    assert one.aggregates == (uid(1, "e"), uid(2, "e"))

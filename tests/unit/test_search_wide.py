"""Wide trees: first results quickly, fair progress, small memory."""

import tracemalloc
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

import msgspec
import pytest
from msgspec import structs

from bus.queries import Candidate, CandidatesFound, FindCandidates, OrderBy
from bus.replication import ProviderChange
from bus.reports import Inventory
from bus.requests import ResourceGroup
from placement_worker.core import fits
from placement_worker.core import search as searching
from placement_worker.core.fits import AssignmentSearch, options_at, plan
from placement_worker.core.index import Index, Snapshot
from placement_worker.core.search import TOGETHER
from placement_worker.core.trees import Tree
from tests.support.ids import uid
from tests.support.plain_search import PlainSearch, all_pages, as_way
from tests.support.provider_trees import (
    CLASSES,
    SHARES,
    ZONES,
    a_query,
    a_world,
    an_index,
    in_zones,
    narrowed,
    page,
    search,
    state,
    tree,
    with_zones,
)


def wide(number: int, children: int, units: int = 8, **stock: int) -> Tree:
    """A root with so many children of so many units."""
    below = (state(number + position, number, {"CUSTOM_VF": units}) for position in range(1, children + 1))
    return tree(state(number, None, dict(stock)), *below)


def groups(*amounts: int, isolate: bool = False, limit: int = 1000) -> FindCandidates:
    return FindCandidates(
        groups=tuple(
            ResourceGroup(suffix=f"_{position}", resources={"CUSTOM_VF": amount})
            for position, amount in enumerate(amounts)
        ),
        group_policy="isolate" if isolate else "none",
        limit=limit,
        per_host=0,
    )


def steps_of(world: Tree, query: FindCandidates) -> tuple[int, int]:
    index = an_index([world])
    snapshot = Snapshot(index)
    made = plan(snapshot, query)
    root = index.rows[world.root]
    merging = AssignmentSearch(
        Snapshot(index), made.slots, made.rules, options_at(Snapshot(index), made, root)
    )
    return sum(way is not None for way in merging), merging.steps


@pytest.mark.parametrize(
    ("children", "several", "isolate", "all_ways"),
    [
        pytest.param(8, 6, True, 20_160, id="8 children, 6 groups, isolated"),
        pytest.param(8, 6, False, 262_144, id="8 children, 6 groups"),
        pytest.param(30, 8, False, 30**8, id="30 children, 8 groups"),
        pytest.param(100, 100, True, None, id="100 children, 100 groups, isolated"),
    ],
)
def test_a_wide_tree_is_searched_with_little_memory(
    children: int, several: int, isolate: bool, all_ways: int | None
) -> None:
    index = an_index([wide(0, children)])
    query = groups(*[1] * several, isolate=isolate)
    tracemalloc.start()
    try:
        found = search(index, query)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found.fits) == len(set(map(as_way, found.fits))) == 1000
    assert found.cut
    assert peak < 25 * 2**20
    if all_ways is not None and all_ways < 100_000:
        everything = search(index, msgspec.structs.replace(query, limit=100_000))
        assert (len(everything.fits), everything.cut) == (all_ways, False)


def test_several_wide_trees_have_the_same_share() -> None:
    found = search(an_index([wide(100 * position, 30) for position in range(7)]), groups(1, 1, 1, limit=700))
    assert set(Counter(fit.anchor.uuid for fit in found.fits).values()) == {100}
    uneven = [wide(0, 1), wide(100, 30), wide(200, 2)]
    found = search(an_index(uneven), groups(1, 1, limit=300))
    assert Counter(fit.anchor.uuid for fit in found.fits) == {
        uid(0, "a"): 1,
        uid(100, "a"): 295,
        uid(200, "a"): 4,
    }


def test_searches_beyond_the_stored_number_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = [wide(100 * position, 1 + position % 5) for position in range(20)]
    query = groups(1, 1, limit=150)
    expected = search(an_index(world), query)
    monkeypatch.setattr(searching, "KEPT", 2)
    found = search(an_index(world), query)
    assert [as_way(fit) for fit in found.fits] == [as_way(fit) for fit in expected.fits]
    assert len(set(map(as_way, found.fits))) == 150
    everything = search(an_index(world), msgspec.structs.replace(query, limit=1000))
    assert (len(everything.fits), everything.cut) == (4 * (1 + 4 + 9 + 16 + 25), False)


@pytest.mark.parametrize(
    ("world", "query"),
    [
        pytest.param(wide(0, 12, 3), groups(*[2] * 13), id="thirteen things for twelve boxes"),
        pytest.param(wide(0, 12, 3), groups(*[3, 2] * 7), id="of two sizes"),
        pytest.param(wide(0, 40, 1), groups(*[1] * 41), id="one more than there is"),
    ],
)
def test_a_dead_end_is_recognised_when_it_comes_again(world: Tree, query: FindCandidates) -> None:
    """By trial alone it would take longer than the universe is old."""
    fits, steps = steps_of(world, query)
    assert fits == 0
    assert steps < 20_000


def hard(number: int) -> Tree:
    boxes = (state(number + position, number, {"CUSTOM_VF": 10 + position}) for position in range(1, 13))
    return tree(state(number), *boxes)


HARD = groups(*(5 + position % 7 for position in range(24)), limit=10)


def test_a_search_that_takes_too_long_is_marked_and_finds_other_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(searching, "PATIENCE", 50 * fits.BREATH)
    monkeypatch.setattr(searching, "HOST_PATIENCE", 20 * fits.BREATH)
    index = an_index([hard(0), wide(100, 40, 30), hard(200)])
    found = search(index, HARD)
    assert len(found.fits) == 10 and found.cut
    assert {fit.anchor.uuid for fit in found.fits} == {uid(100, "a")}
    nothing = search(an_index([hard(0)]), HARD)
    assert (nothing.fits, nothing.cut, nothing.fitting) == ([], True, 1)


def test_pages_go_past_a_host_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "PATIENCE", 5 * fits.BREATH)
    monkeypatch.setattr(searching, "HOST_PATIENCE", 2 * fits.BREATH)
    index = an_index([*(hard(100 * position) for position in range(5)), wide(5000, 40, 30)])
    query = msgspec.structs.replace(HARD, per_host=1)
    pages = all_pages(index, query)
    assert len(pages) > 1, "so that others have their turn between"
    assert [candidate.root for some in pages for candidate in some.candidates] == [uid(5000, "a")]
    assert (
        sum(removal.removed for some in pages for removal in some.removals if removal.constraint == TOGETHER)
        == 5
    )


def test_one_host_may_have_more_candidates_than_a_page() -> None:
    index = an_index([wide(0, 8), wide(100, 2), wide(200, 1)])
    query = msgspec.structs.replace(groups(1, 1, 1, limit=20), per_host=0)
    pages = all_pages(index, query)
    assert [Counter(candidate.root for candidate in some.candidates) for some in pages] == [
        {uid(0, "a"): 20},
        {uid(100, "a"): 8, uid(200, "a"): 1},
    ]


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
def test_the_best_come_first_as_a_plain_evaluation_has_them(seed: int) -> None:
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
            sent = [candidate.root for found in pages for candidate in found.candidates]
            assert len(sent) == len(set(sent))
            assert set(sent) == {root for root, fits in expected.items() if fits}, query
            scale = pages[0].order
            assert all(found.order == scale for found in pages)
            fitting = [tree for tree in world if expected[tree.root]]
            if not fitting:
                continue
            scores, used = plainly_scored(fitting, scale)
            score_of = dict(zip((tree.root for tree in fitting), scores, strict=True))
            if len(sent) == plan(Snapshot(index), query).count:
                assert list(scale) == plainly_scored(fitting, query.order)[1]
            assert [score_of[root] for root in sent] == pytest.approx(sorted(scores, reverse=True)), query
            assert used == list(scale)
            orders += len(sent) > 1
    assert orders > 100


def test_a_shared_provider_is_offered_once_in_ordered_pages() -> None:
    chance = Random(9)
    for _ in range(WORLDS):
        world = a_world(chance)
        plain, index = PlainSearch(world), an_index(world)
        for _ in range(QUERIES):
            query = structs.replace(a_query(chance, world), order=some_order(chance), limit=MANY)
            sent = [(candidate.allocations, candidate.mappings) for candidate in candidates(index, query)]
            assert len(sent) == len(set(map(str, sent))) == len(plain.search(query))
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


def test_equal_hosts_are_ordered_by_the_seed() -> None:
    index = flat(300)
    sent = [
        [candidate.root for candidate in page(index, fullest(300, seed=f"s{n}")).candidates]
        for n in range(40)
    ]
    assert len({tuple(some) for some in sent}) == 40
    assert all(len(set(some)) == 300 for some in sent)
    assert len({some[0] for some in sent}) > 30
    again = [candidate.root for candidate in page(index, fullest(300, seed="s7")).candidates]
    assert again == sent[7]


def test_pages_with_the_scale_contain_each_unchanged_host_once() -> None:
    chance = Random(11)
    for _ in range(20):
        index, number = flat(200), 1
        for position in range(200):
            number += 1
            use(index, number, position, chance.randrange(60))
        sent: list[str] = []
        query, changed = fullest(16, seed="x"), set()
        while True:
            found = page(index, query)
            sent += [candidate.root for candidate in found.candidates]
            if found.more is None:
                break
            query = structs.replace(query, after=found.more, order=found.order)
            for position in chance.sample(range(200), 5):
                number += 1
                use(index, number, position, chance.randrange(64))
                changed.add(uid(position, "a"))
        steady = [root for root in sent if root not in changed]
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


NEVER, ALWAYS = 10**9, -1


def a_tight_world(chance: Random) -> list[Tree]:
    """Providers much alike, with hardly room enough; and some of another tree that share with them."""
    numbers = list(range(1, chance.randint(4, 6)))
    children = [
        state(
            number,
            chance.choice([0, 0, *numbers[: number - 1]]),
            {"CUSTOM_VF": chance.choice((1, 2, 2)), "VCPU": chance.choice((1, 2))},
            traits=[one for one in ("CUSTOM_A", "CUSTOM_B", SHARES) if chance.random() < 0.3],
            aggregates=[0] if chance.random() < 0.5 else [],
        )
        for number in numbers
    ]
    pools = (
        state(number, None if number == 10 else 10, {"CUSTOM_VF": 2}, traits=[SHARES], aggregates=[0])
        for number in (10, 11)
    )
    return [tree(state(0, None, {"VCPU": 1}, aggregates=[0]), *children), tree(*pools)]


def a_tight_query(chance: Random) -> FindCandidates:
    groups = [
        ResourceGroup(
            suffix=f"_{nth}",
            resources={chance.choice(("CUSTOM_VF", "CUSTOM_VF", "VCPU")): chance.choice((1, 1, 2))}
            if chance.random() < 0.7
            else {},
            required=("CUSTOM_A",) if chance.random() < 0.25 else (),
        )
        for nth in range(chance.randint(2, 4))
    ]
    if len(groups) < 4 and chance.random() < 0.8:
        needs = (("CUSTOM_A", "CUSTOM_B"),) if chance.random() < 0.3 else ()
        needed = ("CUSTOM_A", "CUSTOM_B") if chance.random() < 0.4 else ()
        groups.append(
            ResourceGroup(resources={"VCPU": 1, "CUSTOM_VF": 1}, required=needed, required_any=needs)
        )
    chance.shuffle(groups)
    suffixes = [group.suffix for group in groups if group.suffix]
    sets = [tuple(chance.sample(suffixes, min(len(suffixes), 3))) for _ in range(chance.choice((0, 0, 1, 2)))]
    sets += [(group.suffix,) for group in groups if not group.resources]
    return FindCandidates(
        groups=tuple(groups),
        same_subtree=tuple(sets),
        group_policy=chance.choice(("none", "isolate")),
        nested=chance.random() < 0.7,
    )


@pytest.mark.parametrize("seed", range(6))
def test_remembered_dead_ends_hide_no_candidate(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = Random(seed)
    asked = 0
    while asked < 100:
        index, query = an_index(a_tight_world(chance)), a_tight_query(chance)
        if not any(group.resources for group in query.groups):
            continue
        made = plan(Snapshot(index), query)
        anchor = index.rows[next(iter(index.trees))]
        if not made.left[anchor.position]:
            continue
        asked += 1
        options = options_at(Snapshot(index), made, anchor)
        for mixed in (False, True):
            found = []
            for wary in (NEVER, ALWAYS):
                monkeypatch.setattr(fits, "WARY", wary)
                merging = AssignmentSearch(Snapshot(index), made.slots, made.rules, options, mixed=mixed)
                found.append([way for way in merging if way is not None])
            assert found[0] == found[1]


CELLS = tree(
    state(0),
    state(1, 0, {"VCPU": 1}, traits=["CUSTOM_A"]),
    state(11, 1, {"CUSTOM_VF": 1}, traits=["CUSTOM_A"]),
    state(12, 1, {"DISK_GB": 1}),
    state(2, 0, {"VCPU": 1}),
    state(21, 2, {"CUSTOM_VF": 1}),
    state(22, 2, {"DISK_GB": 1}),
)


@pytest.mark.parametrize("taken", ["VCPU", "CUSTOM_VF"])
@pytest.mark.parametrize(
    "names", [("cell", "port"), ("port", "cell"), ("port", "disk", "cell"), ("cell", "disk", "port")]
)
def test_a_dead_end_in_one_numa_cell_is_not_remembered_for_another(
    taken: str, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fits, "WARY", ALWAYS)
    asks = {"cell": {"VCPU": 1}, "port": {"CUSTOM_VF": 1}, "disk": {"DISK_GB": 1}}
    groups = [ResourceGroup(suffix=name, resources=asks[name]) for name in names]
    first = ResourceGroup(suffix="first", resources={taken: 1}, required=("CUSTOM_A",))
    query = FindCandidates(groups=(first, *groups), same_subtree=(names,))
    (fit,) = search(an_index([CELLS]), query).fits
    assert (fit.mappings["cell"], fit.mappings["port"]) == ((uid(2, "a"),), (uid(21, "a"),))

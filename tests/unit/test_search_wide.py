"""Wide trees: first results quickly, fair progress, small memory."""

import tracemalloc
from collections import Counter

import msgspec
import pytest

from bus.queries import FindCandidates
from bus.reports import Inventory
from bus.requests import ResourceGroup
from placement_worker.core import search as searching
from placement_worker.core import ways
from placement_worker.core.fits import options_at
from placement_worker.core.search import TOGETHER, page, search
from placement_worker.core.search_plan import plan
from placement_worker.core.snapshot import Snapshot
from placement_worker.core.trees import Tree
from placement_worker.core.ways import AssignmentSearch
from tests.support.ids import uid
from tests.support.provider_trees import SHARES, an_index, state, tree
from tests.support.search_answers import all_pages, as_way


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
def test_as_many_as_asked_for_with_little_memory(
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


@pytest.mark.parametrize("limit", [51, 100, 1000])
def test_a_wide_tree_starves_nobody(limit: int) -> None:
    flat = [tree(state(1000 + position, None, {"CUSTOM_VF": 8})) for position in range(50)]
    found = search(an_index([wide(0, 30), *flat]), groups(1, 1, 1, limit=limit))
    assert len(found.fits) == limit
    ways = Counter(fit.anchor.uuid for fit in found.fits)
    assert len(ways) == 51
    assert ways[uid(0, "a")] == limit - 50


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


def test_more_wide_trees_than_are_kept_open_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
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
    ways, steps = steps_of(world, query)
    assert ways == 0
    assert steps < 20_000


def test_providers_that_are_alike_but_for_a_trait_are_not_taken_for_one_another() -> None:
    children = [
        state(position, 0, {"CUSTOM_VF": 8}, traits=["CUSTOM_A"] if position <= 4 else [])
        for position in range(1, 13)
    ]
    world = tree(state(0), *children)
    picky = [
        ResourceGroup(
            suffix=f"_{position}", resources={"CUSTOM_VF": 1}, required=("CUSTOM_A",) if position < 5 else ()
        )
        for position in range(9)
    ]
    query = FindCandidates(groups=tuple(picky), group_policy="isolate", per_host=0)
    ways, steps = steps_of(world, query)
    assert ways == 0 and steps < 5000
    found = search(an_index([world]), query)
    assert not found.cut and found.removals[-1].constraint.startswith("isolate")
    fewer = msgspec.structs.replace(query, groups=query.groups[1:], limit=10)
    assert len(search(an_index([world]), fewer).fits) == 10


def hard(number: int) -> Tree:
    boxes = (state(number + position, number, {"CUSTOM_VF": 10 + position}) for position in range(1, 13))
    return tree(state(number), *boxes)


HARD = groups(*(5 + position % 7 for position in range(24)), limit=10)


def test_a_search_that_takes_too_long_says_so_and_finds_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "PATIENCE", 50 * ways.BREATH)
    monkeypatch.setattr(searching, "HOST_PATIENCE", 20 * ways.BREATH)
    index = an_index([hard(0), wide(100, 40, 30), hard(200)])
    found = search(index, HARD)
    assert len(found.fits) == 10 and found.cut
    assert {fit.anchor.uuid for fit in found.fits} == {uid(100, "a")}
    nothing = search(an_index([hard(0)]), HARD)
    assert (nothing.fits, nothing.cut, nothing.fitting) == ([], True, 1)


def test_pages_go_past_a_host_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "PATIENCE", 5 * ways.BREATH)
    monkeypatch.setattr(searching, "HOST_PATIENCE", 2 * ways.BREATH)
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


def test_a_pool_for_many_hosts_is_offered_once_and_no_host_is_looked_into_for_it() -> None:
    pools = [
        tree(state(position, None, {"DISK_GB": 100}, traits=[SHARES], aggregates=[position]))
        for position in range(10)
    ]
    both = tree(state(50, None, {"DISK_GB": 100}, traits=[SHARES], aggregates=[0, 1]))
    hosts = [
        tree(state(100 + position, None, {"VCPU": 8}, aggregates=[position % 10])) for position in range(500)
    ]
    index = an_index([*hosts, *pools, both])
    one = ResourceGroup(resources={"DISK_GB": 1})
    for seed in ("", "a", "b"):
        query = FindCandidates(groups=(one,), per_host=0, seed=seed, limit=1000)
        found = search(index, query)
        assert sorted(row.uuid for fit in found.fits for row in fit.rows) == sorted(
            uid(position, "a") for position in (*range(10), 50)
        )
        assert (found.cut, found.fitting) == (False, 511)
        two = msgspec.structs.replace(query, groups=(one, ResourceGroup(suffix="2", resources=one.resources)))
        told = [as_way(fit) for fit in search(index, two).fits]
        # Each with itself; and 50, 0 and 1 with one another, for all three serve the tree of 50.
        assert len(told) == len(set(told)) == 11 + 2 * 3
        pages = all_pages(index, msgspec.structs.replace(two, limit=4, per_host=10))
        assert sum(len(some.candidates) for some in pages) == 17


def test_a_provider_with_a_max_unit_serves_many_groups_only_within_it() -> None:
    children = (
        state(position, 0, {"CUSTOM_VF": Inventory(total=100, max_unit=2)}) for position in range(1, 4)
    )
    found = search(an_index([tree(state(0), *children)]), groups(1, 1, 1, 1, 1, 1))
    assert len(found.fits) == 90, "two of six for each of three"
    assert all(
        {allocation["CUSTOM_VF"] for allocation in fit.allocations.values()} == {2} for fit in found.fits
    )


def test_page_and_search_agree_on_who_is_left() -> None:
    index = an_index([wide(0, 3, 2), wide(100, 1, 2), wide(200, 4, 2)])
    query = groups(2, 2)
    found, told = search(index, query), page(index, query)
    assert found.fitting == told.fitting == 2
    assert found.removals == told.removals

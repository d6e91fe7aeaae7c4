"""Wide trees: bounded work and memory."""

import tracemalloc

import msgspec
import pytest

from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from placement_worker.core import assignment
from placement_worker.core import search as searching
from placement_worker.core.search import answer
from placement_worker.core.trees import Tree
from tests.support.ids import uid
from tests.support.plain_search import as_way
from tests.support.provider_trees import an_index, search, state, tree


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
    )


@pytest.mark.parametrize(("children", "several", "isolate"), [(30, 8, False), (100, 100, True)])
def test_a_wide_tree_is_searched_with_little_memory(children: int, several: int, isolate: bool) -> None:
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


def hard(number: int) -> Tree:
    boxes = (state(number + position, number, {"CUSTOM_VF": 10 + position}) for position in range(1, 13))
    return tree(state(number), *boxes)


HARD = groups(*(5 + position % 7 for position in range(24)), limit=10)


def test_a_search_that_takes_too_long_is_marked_and_finds_other_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(searching, "PATIENCE", 50 * assignment.BREATH)
    index = an_index([hard(0), wide(100, 40, 30), hard(200)])
    found = search(index, HARD)
    assert len(found.fits) == 10 and found.cut
    assert {fit.anchor.uuid for fit in found.fits} == {uid(100, "a")}
    nothing = search(an_index([hard(0)]), HARD)
    assert (nothing.fits, nothing.cut, nothing.fitting) == ([], True, 1)


def test_an_answer_is_limited_by_bytes_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    index = an_index([tree(state(number, None, {"VCPU": 64})) for number in range(50)])
    query = FindCandidates(groups=(ResourceGroup(resources={"VCPU": 1}),), limit=50)
    every = answer(search(index, query))
    assert (len(every.candidates), every.cut) == (50, False)
    monkeypatch.setattr(searching, "ANSWER_BYTES", len(msgspec.json.encode(every.candidates)) // 2)
    some = answer(search(index, query))
    assert (len(some.candidates), some.cut, some.fitting) == (25, True, 50)


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
    monkeypatch.setattr(assignment, "WARY", -1)  # from the first
    asks = {"cell": {"VCPU": 1}, "port": {"CUSTOM_VF": 1}, "disk": {"DISK_GB": 1}}
    groups = [ResourceGroup(suffix=name, resources=asks[name]) for name in names]
    first = ResourceGroup(suffix="first", resources={taken: 1}, required=("CUSTOM_A",))
    query = FindCandidates(groups=(first, *groups), same_subtree=(names,))
    (fit,) = search(an_index([CELLS]), query).fits
    assert (fit.mappings["cell"], fit.mappings["port"]) == ((uid(2, "a"),), (uid(21, "a"),))

"""Rules of candidates one by one: providers for groups, combinations, reasons of empty results."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from random import Random
from typing import Any

import pytest
from msgspec import structs

from bus.candidates import SenselessQuery
from bus.decisions import NearMiss, Removal
from bus.queries import FindCandidates
from bus.reports import EXCLUDES_SIBLINGS, Inventory
from bus.requests import ResourceGroup
from placement_worker.core import assignment
from placement_worker.core.index import Index, Snapshot
from placement_worker.core.row_table import IndexPacking
from placement_worker.core.search import answer, at_once, search_steps
from placement_worker.core.trees import Tree
from placement_worker.memory import PackedSnapshot
from tests.support.ids import uid
from tests.support.placement_builders import looking_for
from tests.support.plain_search import PlainSearch, as_way, taken, way
from tests.support.provider_trees import a_query, a_world, an_index, search, state, tree

A, B = "CUSTOM_A", "CUSTOM_B"


def group(suffix: str = "", resources: Mapping[str, int] | None = None, **demands: Any) -> ResourceGroup:
    return ResourceGroup(suffix=suffix, resources=dict(resources or {}), **demands)


def asking(*groups: ResourceGroup, **demands: Any) -> FindCandidates:
    return FindCandidates(groups=groups, **{"limit": 1000} | demands)


DISK = {"DISK_GB": 5}


# A root with two NUMA cells, 1 and 2, and a port of each.
NUMA = an_index(
    [
        tree(
            state(0, None, {"MEMORY_MB": 64}),
            *(state(cell, 0, {"VCPU": 4}) for cell in (1, 2)),
            *(state(cell * 10 + 1, cell, {"CUSTOM_VF": 4}, traits=[t]) for cell, t in ((1, A), (2, B))),
        )
    ]
)


# Why nothing fits


def plainly(removals: Iterable[Removal]) -> tuple[Removal, ...]:
    return tuple(structs.replace(removal, code="", hosts=()) for removal in removals)


def removals(*each: tuple[str, int, int]) -> tuple[Removal, ...]:
    return tuple(Removal(constraint=says, removed=removed, left=left) for says, removed, left in each)


def full(number: int) -> Iterable[Any]:
    yield state(number, None, {"VCPU": 8}, traits=["HW_NUMA_ROOT"])
    yield state(number + 1, number, {"CUSTOM_VF": 4}, traits=[A])
    yield state(number + 2, number, {"CUSTOM_VF": Inventory(total=4, max_unit=3)}, {"CUSTOM_VF": 3})


RACK = an_index([tree(*full(10)), tree(*full(20)), tree(state(30, None, {"VCPU": 8}))])


NOTHING_FITS: dict[str, tuple[Any, ...]] = {
    "a trait nobody has": (asking(group("1", {"CUSTOM_VF": 1}, required=(B,))),
        (("group 1: trait CUSTOM_B: no provider has it", 3, 0),),
        "group 1: trait CUSTOM_B: no provider has it"),
    "no provider has so much": (asking(group("1", {"CUSTOM_VF": 6})), (("group 1: CUSTOM_VF: 6 free", 3, 0),),
        "group 1: 2 CUSTOM_VF: asked 6, at most free 4"),
    "each somewhere, but not all at one": (asking(group("1", {"CUSTOM_VF": 1, "VCPU": 1})),
        (("group 1: CUSTOM_VF: 1 free", 1, 2), ("group 1: all of it at one provider", 2, 0)),
        "group 1: all of it at one provider"),
    "not enough in all": (asking(group("1", {"CUSTOM_VF": 3}), group("2", {"CUSTOM_VF": 3})),
        (("group 1: CUSTOM_VF: 3 free", 1, 2), ("CUSTOM_VF: 6 free in all groups", 2, 0)),
        "CUSTOM_VF: 6 free in all groups"),
    "too few providers for isolate": (
        asking(*(group(str(position), {"CUSTOM_VF": 1}) for position in range(3)), group_policy="isolate"),
        (("group 0: CUSTOM_VF: 1 free", 1, 2), ("isolate: 3 providers", 2, 0)),
        "isolate: 3 providers",
    ),
    "enough providers for isolate, but not of the kind": (
        asking(
            group("1", {"CUSTOM_VF": 2}),
            group("2", {"CUSTOM_VF": 2}),
            group("3", forbidden=(A,)),
            same_subtree=(("3",),),
            group_policy="isolate",
        ),
        (("group 1: CUSTOM_VF: 2 free", 1, 2), ("isolate: a provider of its own for each group", 2, 0)),
        "isolate: a provider of its own for each group",
    ),
    "not related": (
        asking(
            group("1", {"CUSTOM_VF": 1}, required=(A,)),
            group("2", {"CUSTOM_VF": 1}, forbidden=(A,)),
            same_subtree=(("1", "2"),),
        ),
        (("group 1: trait CUSTOM_A", 1, 2), ("same_subtree 1+2", 2, 0)),
        "same_subtree 1+2",
    ),
    "two of one tree": (
        asking(group(resources={"VCPU": 1, "CUSTOM_VF": 2}, required=(A,), member_of=()), nested=False),
        (("trait CUSTOM_A", 1, 2), ("never two providers of one tree", 2, 0)),
        "never two providers of one tree",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("query", "removed", "nearest"), NOTHING_FITS.values(), ids=NOTHING_FITS.keys())
def test_why_nothing_fits(
    query: FindCandidates, removed: tuple[tuple[str, int, int], ...], nearest: str
) -> None:
    found = search(RACK, query)
    assert not found.fits
    assert plainly(found.removals) == removals(*removed)
    assert found.considered == 3 and found.fitting == 0
    assert found.nearest[0].host == "p10"
    assert found.nearest[0].lacks == nearest


LIMITED = an_index([
    tree(state(10, None, {"VCPU": Inventory(total=32, allocation_ratio=4.0, max_unit=32)})),
    tree(state(20, None, {"VCPU": Inventory(total=64, min_unit=8, step_size=4, max_unit=16)}, {"VCPU": 60})),
])  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "host", "lacks"),
    [
        (999, "p10", "VCPU: asked 999, at most 32 for one claim (max_unit), free 128"),
        (40, "p10", "VCPU: asked 40, at most 32 for one claim (max_unit), free 128"),
        (2, "p20", "VCPU: asked 2, at least 8 for one claim (min_unit), free 4"),
        (10, "p20", "VCPU: asked 10, only multiples of 4 (step_size), free 4"),
        (12, "p20", "8 VCPU: asked 12, free 4"),
    ],
)
def test_a_limit_of_an_inventory_is_named_before_the_free_amount(asked: int, host: str, lacks: str) -> None:
    found = search(LIMITED, asking(group(resources={"VCPU": asked}), roots=(uid(int(host[1:]), "a"),)))
    assert [(miss.host, miss.lacks) for miss in found.nearest] == [(host, lacks)]


def test_an_impossible_sum_is_reported_with_figures() -> None:
    query = asking(group("1", {"CUSTOM_VF": 3}), group("2", {"CUSTOM_VF": 2}), group("3", {"CUSTOM_VF": 3}))
    ports = (state(number, 1, {"CUSTOM_VF": 4}) for number in (2, 3))
    found = search(an_index([tree(state(1), *ports)]), query)
    assert plainly(found.removals) == removals(("summed CUSTOM_VF within what is free and max_unit", 1, 0))
    lacks = "summed CUSTOM_VF: asked 3+2+3, to be had 4+4"
    assert found.nearest == (NearMiss(host="p1", lacks=lacks, code="together"),)


# What cannot be meant


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (asking(group(resources=DISK), group(resources=DISK)), "groups[1].suffix: there is a group without"),
        (asking(group("1", DISK), group("1", DISK)), "groups[1].suffix: there is a group '1' already"),
        (asking(group()), "groups[0].resources: empty"),
        (asking(group("1", DISK), group("2")), "groups[1].resources: empty, and no same_subtree names it"),
        (asking(group("1"), same_subtree=(("1",),)), "groups: none of them asks for resources"),
        (asking(group(resources=DISK, required=(A,), forbidden=(A,))),
         "groups[0].forbidden: CUSTOM_A is req"),
        (asking(group(resources=DISK, required_any=((A, B),), forbidden=(A, B))),
         "groups[0].required_any[0]: all are forbidden"),
        (asking(group(resources=DISK, required_any=((),))), "groups[0].required_any[0]: empty"),
        (asking(group(resources=DISK, member_of=((),))), "groups[0].member_of[0]: empty"),
        (asking(group("1", DISK), same_subtree=(("1", "2"),)),
         "same_subtree[0]: there is no group with suffix"),
        (asking(group(resources=DISK), same_subtree=(("",),)),
         "same_subtree[0]: there is no group with suffix"),
        (asking(group(resources=DISK), root_required=(A,), root_forbidden=(A,)),
         "root_forbidden: CUSTOM_A is required as well"),
        (asking(group("1", DISK), isolated=("1", "2")), "isolated[1]: there is no group with suffix '2'"),
        (asking(group(resources=DISK), isolated=("",)), "isolated[0]: there is no group with suffix ''"),
        (asking(group(resources=DISK), root_member_of=((),)), "root_member_of[0]: empty"),
        (asking(*(group(str(position), DISK) for position in range(300))),
         "groups: 300 of them, at most 256"),
    ],
)  # fmt: skip
def test_invalid_queries_are_refused_by_field(query: FindCandidates, says: str) -> None:
    with pytest.raises(SenselessQuery) as refused:
        search(RACK, query)
    assert str(refused.value).startswith(says)


@pytest.mark.parametrize("amount", [2**31 - 1, 2**31, 2**63, 10**400])
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("suffixes", [("",), ("1", "2")], ids=["one group", "two"])
def test_an_amount_beyond_every_inventory_fits_nowhere(
    step: int, amount: int, suffixes: tuple[str, ...]
) -> None:
    index = an_index([tree(state(1, None, {"VCPU": Inventory(total=8, step_size=step)}))])
    query = asking(*(group(suffix, {"VCPU": amount}) for suffix in suffixes))
    found = search(index, query)
    assert found.fits == [] and found.nearest


WORLDS, QUERIES = 60, 12  # for each of the seeds below
Case = tuple[list[Tree], PlainSearch, Index, FindCandidates]


def random_searches(chance: Random) -> Iterator[Case]:
    for _ in range(WORLDS):
        world = a_world(chance)
        plain, index = PlainSearch(world), an_index(world)
        for _ in range(QUERIES):
            yield world, plain, index, a_query(chance, world)


@pytest.mark.parametrize("wary", [assignment.WARY, -1], ids=["", "dead ends remembered from the first"])
@pytest.mark.parametrize("seed", range(3))
def test_the_search_equals_an_exhaustive_search(
    seed: int, wary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "WARY", wary)
    fruitful = 0
    for world, plain, index, query in random_searches(Random(3 + seed)):
        expected = plain.search(query)
        found = search(index, query)
        assert Counter(map(as_way, found.fits)) == Counter(expected), query
        assert not found.cut
        for fit in found.fits:
            assert [row.uuid for row in fit.rows] == list(fit.allocations)
            assert fit.anchor.parent is None
        left = found.considered
        assert left == len(world)
        for removal in found.removals:
            assert removal.removed > 0 and removal.left == left - removal.removed
            left = removal.left
        assert found.fitting == left
        assert bool(left) == bool(found.fits) != bool(found.nearest)
        fruitful += bool(expected)
    assert fruitful > WORLDS * QUERIES // 5


@pytest.mark.parametrize("seed", range(3))
def test_a_limit_gives_so_many_and_every_host_its_share(seed: int) -> None:
    chance = Random(200 + seed)
    for world, plain, index, query in random_searches(chance):
        query = structs.replace(query, limit=chance.randint(1, 12))
        by_anchor = plain.by_anchor(query)
        at_anchors = Counter(one for ways in by_anchor.values() for one in ways)
        found = search(index, query)
        sent = [as_way(fit) for fit in found.fits]
        assert set(sent) <= at_anchors.keys()
        assert len(set(sent)) == len(sent) == min(query.limit, len(at_anchors))
        assert found.cut == (len(at_anchors) > query.limit)
        offered_providers = Counter(fit.anchor.uuid for fit in found.fits)
        for root, ways in by_anchor.items():
            its_own = sum(at_anchors[way] == 1 for way in ways)
            assert offered_providers[root] >= min(its_own, query.limit // len(world))


@pytest.mark.parametrize("seed", range(3))
def test_an_answer_has_the_shapes_and_mappings_of_each_candidate(seed: int) -> None:
    for _, plain, index, query in random_searches(Random(300 + seed)):
        by_anchor = plain.by_anchor(query)
        found = answer(search(index, query)).candidates
        for candidate in found:
            possible = {amounts for amounts, _ in by_anchor[candidate.root]}
            assert way(taken(candidate.allocations), {})[0] in possible
            assert candidate.shapes.keys() == candidate.allocations.keys()
            assert bool(candidate.mappings) == any(group.suffix for group in query.groups)
        assert bool(found) == any(by_anchor.values())


SMALL, LARGE = uid(3, "a"), uid(4, "a")


def a_card() -> Index:
    """A host with a card that is of one of two types at a time."""
    types = ((3, "CUSTOM_SMALL"), (4, "CUSTOM_LARGE"))
    providers = (state(number, 2, {"VGPU": 4}, traits=[EXCLUDES_SIBLINGS, trait]) for number, trait in types)
    return an_index([tree(state(1), state(2, 1), *providers)])


def offered_providers(index: Index, snapshot: Snapshot | None = None) -> set[str]:
    """Return the providers that candidates name, over both types."""
    found: set[str] = set()
    for trait in ("CUSTOM_SMALL", "CUSTOM_LARGE"):
        query = looking_for({"VGPU": 1}, required=(trait,))
        for fit in at_once(search_steps(snapshot or Snapshot(index), query)).fits:
            found.update(fit.allocations)
    return found


def test_a_reserved_type_removes_the_other() -> None:
    index, packing = a_card(), IndexPacking()
    packing.claim({LARGE: {"VGPU": 1}})
    assert offered_providers(index, PackedSnapshot(index, packing)) == {LARGE}
    packing.release({LARGE: {"VGPU": 1}})
    assert offered_providers(index, PackedSnapshot(index, packing)) == {SMALL, LARGE}

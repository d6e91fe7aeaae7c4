"""Remembered dead ends change how long it takes to find all ways to use a host, and nothing else."""

from random import Random

import pytest

from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from placement_worker.core import ways
from placement_worker.core.fits import options_at
from placement_worker.core.search import search
from placement_worker.core.search_plan import plan
from placement_worker.core.snapshot import Snapshot
from placement_worker.core.trees import Tree
from placement_worker.core.ways import AssignmentSearch
from tests.support.ids import uid
from tests.support.provider_trees import SHARES, an_index, state, tree

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
def test_remembering_dead_ends_loses_no_way(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
                monkeypatch.setattr(ways, "WARY", wary)
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
def test_a_dead_end_below_one_cell_is_none_below_another(
    taken: str, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "WARY", ALWAYS)
    asks = {"cell": {"VCPU": 1}, "port": {"CUSTOM_VF": 1}, "disk": {"DISK_GB": 1}}
    groups = [ResourceGroup(suffix=name, resources=asks[name]) for name in names]
    first = ResourceGroup(suffix="first", resources={taken: 1}, required=("CUSTOM_A",))
    query = FindCandidates(groups=(first, *groups), same_subtree=(names,))
    index = an_index([CELLS])
    (fit,) = search(index, query).fits
    assert (fit.mappings["cell"], fit.mappings["port"]) == ((uid(2, "a"),), (uid(21, "a"),))

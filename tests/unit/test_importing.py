"""Comparison and order of an import."""

import dataclasses
import random
from typing import Any

import pytest

from berth.importing.placement_contents import differences, unimportable
from berth.importing.writers import portions
from berth.kit.placement_contents import ImportedConsumer, ImportedProvider, PlacementContents
from bus.reports import Inventory

HOST = ImportedProvider(
    id="h", name="host", parent=None, inventories={"VCPU": Inventory(total=8)},
    traits=frozenset({"CUSTOM_RED"}), aggregates=frozenset({"rack"}),
)  # fmt: skip
SOMEBODY = ImportedConsumer(id="c", project="p", user="u", type="INSTANCE", allocations={"h": {"VCPU": 2}})


def world(*things: ImportedProvider | ImportedConsumer, classes: set[str] | None = None) -> PlacementContents:
    made = PlacementContents(classes=classes or set())
    for thing in things:
        if isinstance(thing, ImportedProvider):
            made.providers[thing.id] = thing
        else:
            made.consumers[thing.id] = thing
    return made


def other(**fields: Any) -> PlacementContents:
    """Return contents of a host that differs in the fields."""
    return world(dataclasses.replace(HOST, **fields))


def moved(**fields: Any) -> PlacementContents:
    """Return contents of a consumer that differs in the fields."""
    return world(dataclasses.replace(SOMEBODY, **fields))


@pytest.mark.parametrize(
    ("theirs", "ours", "says"),
    [
        (world(HOST, SOMEBODY), world(HOST, SOMEBODY), []),
        (world(HOST), world(), ["provider h: 'host' is missing here"]),
        (world(), world(HOST), ["provider h: 'host' is only here"]),
        (world(HOST), other(name="x"), ["provider h: 'host': its name is 'x' here"]),
        (world(HOST), other(parent="x"), ["provider h: 'host': its parent is x here, not None"]),
        (world(HOST), other(inventories={"VCPU": Inventory(total=8, reserved=1)}),
         ["provider h: 'host': inventory of VCPU has reserved 1 here, not reserved 0"]),
        (world(HOST), other(inventories={"VGPU": Inventory(total=8)}),
         ["provider h: 'host': inventory of VCPU is missing here",
          "provider h: 'host': inventory of VGPU is only here"]),
        (world(HOST), other(traits=frozenset(), aggregates=frozenset({"rack", "room"})),
         ["provider h: 'host': trait CUSTOM_RED is missing here",
          "provider h: 'host': aggregate room is only here"]),
        (world(SOMEBODY), world(), ["consumer c: holds nothing here, there 2 VCPU of h"]),
        (world(), world(SOMEBODY), ["consumer c: holds 2 VCPU of h only here"]),
        (world(SOMEBODY), moved(generation=7), []),
        (world(SOMEBODY), moved(project="q"), ["consumer c: its project is 'q' here, not 'p'"]),
        (world(SOMEBODY), moved(allocations={"h": {"VCPU": 3}}),
         ["consumer c: holds 3 VCPU of h here, there 2 VCPU of h"]),
        (moved(type=None), world(SOMEBODY), []),
        (world(classes={"CUSTOM_X"}), world(classes={"CUSTOM_Y"}), ["class CUSTOM_X: missing here"]),
    ],
)  # fmt: skip
def test_differences(theirs: PlacementContents, ours: PlacementContents, says: list[str]) -> None:
    assert [str(difference) for difference in differences(theirs, ours)] == says


def test_a_name_used_only_by_the_target_refuses_its_tree_and_consumers() -> None:
    child = dataclasses.replace(HOST, id="child", name="child", parent="h")
    third = dataclasses.replace(HOST, id="o", name="other")
    theirs = world(HOST, child, third, dataclasses.replace(SOMEBODY, allocations={"child": {"VCPU": 2}}))
    ours = world(dataclasses.replace(HOST, id="old"))
    assert unimportable(theirs, ours, prune=False).keys() == {"h", "child", "c"}
    assert unimportable(theirs, ours, prune=True) == {}
    assert unimportable(theirs, world(HOST), prune=False) == {}


def forest(trees: int, size: int) -> list[ImportedProvider]:
    """Each provider below the one before it, in no order."""
    made = [
        dataclasses.replace(HOST, id=f"{tree}-{at}", parent=f"{tree}-{at - 1}" if at else None)
        for tree in range(trees)
        for at in range(size)
    ]
    random.Random(1).shuffle(made)
    return made


def test_parents_come_first_and_trees_together() -> None:
    known = world(*forest(20, 5))
    ordered = known.parents_first(set(known.providers))
    ids = [provider.id for provider in ordered]
    assert sorted(ids) == sorted(known.providers)
    for at in range(0, 100, 5):
        tree = ids[at].partition("-")[0]
        assert ids[at : at + 5] == [f"{tree}-{number}" for number in range(5)]


def test_requested_providers_may_begin_below_a_root() -> None:
    known = world(*forest(1, 4))
    assert [provider.id for provider in known.parents_first({"0-3", "0-2"})] == ["0-2", "0-3"]


@pytest.mark.parametrize(("trees", "size"), [(0, 1), (1, 1), (1300, 1), (300, 7), (2, 900)])
def test_portions_are_whole_trees(trees: int, size: int) -> None:
    known = world(*forest(trees, size))
    found = list(portions(known.parents_first(set(known.providers))))
    assert sum(map(len, found)) == trees * size
    for portion in found:
        ids = {provider.id for provider in portion}
        assert all(provider.parent is None or provider.parent in ids for provider in portion)
        assert len(portion) < 500 + size


def test_used_amounts_are_summed_over_consumers() -> None:
    known = world(HOST, SOMEBODY, dataclasses.replace(SOMEBODY, id="d"))
    assert known.used("h", "VCPU") == 4
    assert known.used("h", "VGPU") == 0

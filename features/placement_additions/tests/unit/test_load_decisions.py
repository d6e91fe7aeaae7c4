"""Loads of provider trees, as tables without a database."""

from typing import Any

import pytest
from msgspec import structs

from bus.reports import Inventory
from features.placement_additions.core import bulk_load
from features.placement_additions.messages import ProviderLoad
from placement_worker.extension import WorkingTrees
from tests.support.small_trees import EIGHT, KNOWN, STOCK, small


def a_small_load(uuid: str, parent: str | None = None, **given: Any) -> ProviderLoad:
    """Unless something else is given, what small() has."""
    fields: dict[str, Any] = {"inventories": STOCK, "traits": ("HW_A",), "aggregates": ("x",)}
    return ProviderLoad(**{"id": uuid, "name": f"{uuid}'s name", "parent": parent, **fields, **given})


def loaded(working: WorkingTrees, *items: ProviderLoad) -> list[tuple[str, int] | str]:
    results = bulk_load.load(list(enumerate(items)), working)
    return [result.why or (result.did, result.generation) for result in results]


LOADS: list[tuple[list[ProviderLoad], list[tuple[str, int] | str]]] = [
    ([a_small_load("a"), a_small_load("b", "a"), a_small_load("d")], [("nothing", 5)] * 3),
    ([a_small_load("a", name="new")], [("changed", 5)]),
    ([a_small_load("a", traits=("HW_B",), generation=5)], [("changed", 6)]),
    ([a_small_load("e"), a_small_load("f", "e")], [("made", 1), ("made", 1)]),
    ([a_small_load("e", "c")], [("made", 1)]),
    ([a_small_load("b", "d")], [("changed", 5)]),
    ([a_small_load("b")], [("changed", 5)]),  # it becomes a root
    ([a_small_load("a", "b"), a_small_load("b", None)], [("changed", 5)] * 2),  # they change places
    ([a_small_load("a", name="b's name"), a_small_load("b", "a", name="a's name")], [("changed", 5)] * 2),
    ([a_small_load("e", "z")], ["providers[0].parent: z is neither there nor named before it"]),
    (
        [a_small_load("f", "e"), a_small_load("e")],
        ["providers[0].parent: e is neither there nor named before it"] * 2,
    ),
    ([a_small_load("a", generation=4)], ["providers[0].generation: 4 was given, it is 5 now"]),
    ([a_small_load("e", generation=4)], ["providers[0].generation: 4 was given, it is not there"]),
    ([a_small_load("e", name="d's name")], ['providers[0].name: "d\'s name" is the name of provider d']),
    ([a_small_load("a", "c")], ["providers[0].parent: a would be its own ancestor"]),
    (
        [a_small_load("a", traits=()), a_small_load("c", "b", inventories={})],
        ["providers[1].inventories: VCPU is in use and cannot be left out"] * 2,
    ),
]


@pytest.mark.parametrize("items, outcome", LOADS)
def test_a_tree_is_loaded_as_a_whole_or_refused_by_the_field(
    items: list[ProviderLoad], outcome: list[tuple[str, int] | str]
) -> None:
    working = small()
    assert loaded(working, *items) == outcome
    if isinstance(outcome[0], str) or outcome[0][0] == "nothing":
        assert working.changed() == []
        return
    for item in items:
        state = working.there(item.id)
        assert (state.name, state.parent, state.inventories) == (item.name, item.parent, item.inventories)
        assert loaded(working, structs.replace(item, generation=None)) == [("nothing", state.generation)]


def test_an_invalid_load_names_the_field() -> None:
    def known(kind: str, name: str) -> bool:
        return name in (KNOWN.classes if kind == "resource class" else KNOWN.traits)

    items = [
        a_small_load("e"),
        a_small_load("e", name="f"),
        a_small_load("g", name="e's name"),
        a_small_load("h", "h"),
        a_small_load("i", inventories={"NO": EIGHT}),
        a_small_load("j", traits=("CUSTOM_", "CUSTOM_NEW")),
        a_small_load("k", inventories={"CUSTOM_NEW": Inventory(total=1, reserved=2)}),
        a_small_load("l", inventories={"CUSTOM_NEW": EIGHT}, traits=("CUSTOM_NEW",)),
    ]
    assert bulk_load.wrong(list(enumerate(items)), known) == {
        1: "providers[1].id: e is there twice",
        2: 'providers[2].name: "e\'s name" is there twice',
        3: "providers[3].parent: a provider cannot be its own parent",
        4: "providers[4].inventories.NO: no such resource class; custom names begin with CUSTOM_",
        5: "providers[5].traits: no such trait CUSTOM_; custom names begin with CUSTOM_",
        6: "providers[6].inventories.CUSTOM_NEW.reserved: 2 exceeds the total 1",
    }


def test_providers_of_one_tree_are_loaded_together() -> None:
    homes = {"a": "a", "b": "a", "c": "a", "d": "d"}
    items = [
        a_small_load("b", "a"),
        a_small_load("e"),
        a_small_load("f", "e"),
        a_small_load("c", "d"),
        a_small_load("g"),
        a_small_load("d"),
    ]
    trees = bulk_load.trees_of(list(enumerate(items)), homes)
    assert [[load.id for _, load in tree] for tree in trees] == [["b", "c", "d"], ["e", "f"], ["g"]]

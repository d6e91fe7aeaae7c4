"""Edits of provider trees, as tables without a database."""

import pytest

from bus.reports import Inventory
from bus.resources import (
    AddInventory,
    ChangeProvider,
    DropInventory,
    DropProvider,
    HasChildren,
    MakeProvider,
    Reshape,
    SetAggregates,
    SetInventories,
    SetInventory,
    SetTraits,
    Stale,
    Tangled,
)
from bus.vocabulary import InUse, Missing, Taken
from placement_worker.core import edits
from placement_worker.core.trees import ProviderState
from tests.support.small_trees import EIGHT, KNOWN, STOCK, a_forest, a_provider_state, small

# Generations and shapes

MOVES = [
    # edit, what generation and shape it adds
    (SetInventories(provider="d", inventories=STOCK, generation=5), 1, 0),
    (SetInventories(provider="d", inventories=STOCK), 1, 0),
    (SetInventories(provider="d", inventories={}), 1, 1),
    (SetInventories(provider="d", inventories={"VCPU": Inventory(total=9)}), 1, 1),
    (AddInventory(provider="d", resource_class="CUSTOM_GPU", inventory=EIGHT), 1, 1),
    (SetInventory(provider="d", resource_class="VCPU", inventory=EIGHT, generation=5), 1, 0),
    (SetInventory(provider="d", resource_class="VCPU", inventory=Inventory(total=1)), 1, 1),
    (DropInventory(provider="d", resource_class="VCPU"), 1, 1),
    (SetTraits(provider="d", traits=("HW_A",), generation=5), 0, 0),
    (SetTraits(provider="d", traits=("HW_B", "HW_A"), generation=5), 1, 1),
    (SetTraits(provider="d", traits=()), 1, 1),
    (SetAggregates(provider="d", aggregates=("x",), generation=5), 1, 0),
    (SetAggregates(provider="d", aggregates=("y", "x"), generation=5), 1, 1),
    (SetAggregates(provider="d", aggregates=("x",)), 0, 0),
    (SetAggregates(provider="d", aggregates=("y",)), 0, 1),
    (ChangeProvider(provider="d", name="other"), 0, 0),
    (ChangeProvider(provider="d", name="d's name", parent="c"), 0, 1),
    (ChangeProvider(provider="d", name="d's name", parent=None), 0, 0),
    # more may be used than there is after it
    (SetInventory(provider="c", resource_class="VCPU", inventory=Inventory(total=1)), 1, 1),
]


@pytest.mark.parametrize("edit, generation, shape", MOVES)
def test_edits_change_the_generation_and_if_needed_the_shape(
    edit: edits.EditOfOne, generation: int, shape: int
) -> None:
    working = small()
    state = edits.apply(edit, working, KNOWN)
    assert isinstance(state, ProviderState)
    assert (state.generation - 5, state.shape - 7) == (generation, shape)
    assert state == working.there(edit.provider)
    assert bool(working.changed()) == (state != small().there(edit.provider))


# Refusals

HERE = "b's name"
REFUSALS = [
    (MakeProvider(provider="e", name="e", parent="e"), Tangled(why="itself", provider="e", parent="e")),
    (MakeProvider(provider="e", name="e", parent="z"), Missing(what="parent", names=("z",))),
    (MakeProvider(provider="b", name="e"), Taken(what="id", value="b")),
    (MakeProvider(provider="b", name="d's name"), Taken(what="id", value="b")),
    (MakeProvider(provider="e", name="d's name", parent="a"), Taken(what="name", value="d's name")),
    (ChangeProvider(provider="z", name="z"), Missing(what="provider", names=("z",))),
    (ChangeProvider(provider="b", name="d's name"), Taken(what="name", value="d's name")),
    (ChangeProvider(provider="b", parent="z", name=HERE), Missing(what="parent", names=("z",))),
    (ChangeProvider(provider="b", parent="b", name=HERE), Tangled(why="loop", provider="b", parent="b")),
    (ChangeProvider(provider="b", parent="c", name=HERE), Tangled(why="loop", provider="b", parent="c")),
    (ChangeProvider(provider="b", parent="d", anywhere=False, name=HERE),
     Tangled(why="re-parenting", provider="b", parent="d")),
    (ChangeProvider(provider="b", parent=None, anywhere=False, name=HERE),
     Tangled(why="un-parenting", provider="b", parent=None)),
    (ChangeProvider(provider="a", parent="c", name="a", anywhere=False),
     Tangled(why="loop", provider="a", parent="c")),
    (DropProvider(provider="z"), Missing(what="provider", names=("z",))),
    (DropProvider(provider="b"), HasChildren(provider="b")),
    (DropProvider(provider="c"), InUse(what="c")),
    (SetInventories(provider="d", inventories={}, generation=4), Stale(provider="d", actual=5, given=4)),
    (SetInventories(provider="d", inventories={"NO": EIGHT, "CUSTOM_NO": EIGHT}),
     Missing(what="resource class", names=("CUSTOM_NO", "NO"))),
    (SetInventories(provider="c", inventories={"DISK_GB": EIGHT}), InUse(what="c", classes=("VCPU",))),
    (AddInventory(provider="d", resource_class="VCPU", inventory=EIGHT),
     Taken(what="inventory", value="VCPU")),
    (SetInventory(provider="d", resource_class="MEMORY_MB", inventory=EIGHT),
     Missing(what="inventory", names=("MEMORY_MB",), provider="d")),
    (SetInventory(provider="d", resource_class="NO", inventory=EIGHT),
     Missing(what="resource class", names=("NO",))),
    (DropInventory(provider="d", resource_class="MEMORY_MB"),
     Missing(what="inventory", names=("MEMORY_MB",), provider="d")),
    (DropInventory(provider="c", resource_class="VCPU"), InUse(what="c", classes=("VCPU",))),
    (SetTraits(provider="d", traits=("HW_A", "HW_Z", "CUSTOM_Z"), generation=5),
     Missing(what="trait", names=("CUSTOM_Z", "HW_Z"))),
    (SetTraits(provider="d", traits=("HW_Z",), generation=4), Stale(provider="d", actual=5, given=4)),
    (SetAggregates(provider="d", aggregates=(), generation=6), Stale(provider="d", actual=5, given=6)),
]  # fmt: skip


@pytest.mark.parametrize("edit, refusal", REFUSALS)
def test_an_invalid_edit_is_refused_and_changes_nothing(edit: edits.EditOfOne, refusal: object) -> None:
    working = small()
    assert edits.apply(edit, working, KNOWN) == refusal
    assert working.changed() == []


def test_a_created_provider_has_an_unused_shape() -> None:
    working = a_forest((a_provider_state("a", shape=40),), number=40)
    assert edits.apply(DropProvider(provider="a"), working, KNOWN) is None
    made = edits.apply(MakeProvider(provider="e", name="a's name"), working, KNOWN)  # the name is free again
    assert isinstance(made, ProviderState)
    assert (made.generation, made.shape) == (0, 41)


def test_a_moved_subtree_gets_the_new_root() -> None:
    working = small()
    edits.apply(ChangeProvider(provider="b", name="new", parent="d"), working, KNOWN)
    changed = {
        after.root: {
            provider.uuid: (provider.name, provider.parent, provider.shape) for provider in after.providers
        }
        for _, after in working.changed()
    }
    assert changed == {
        "a": {"a": ("a's name", None, 7)},
        "d": {"d": ("d's name", None, 7), "b": ("new", "d", 8), "c": ("c's name", "b", 8)},
    }
    edits.apply(ChangeProvider(provider="b", name="new", parent=None), working, KNOWN)
    after = {tree.root: [provider.uuid for provider in tree.providers] for _, tree in working.changed()}
    assert after == {"a": ["a"], "b": ["b", "c"]}
    assert working.there("b").shape == 8  # once for all that happens before it is written


# Reshapes


def a_reshape(**to: dict[str, Inventory]) -> Reshape:
    return Reshape(
        inventories=tuple(
            SetInventories(provider=provider, inventories=inventories, generation=5)
            for provider, inventories in to.items()
        )
    )


@pytest.mark.parametrize(
    "order, refusal",
    [
        (a_reshape(z={}), Missing(what="provider", names=("z",))),
        (
            Reshape(inventories=(SetInventories(provider="a", inventories={}, generation=4),)),
            Stale(provider="a", actual=5, given=4),
        ),
        (a_reshape(a={"NO": EIGHT}), Missing(what="resource class", names=("NO",))),
        (a_reshape(d={}, c={"DISK_GB": EIGHT}), InUse(what="c", classes=("VCPU",))),
    ],
)
def test_an_impossible_reshape_is_refused_with_the_reason(order: Reshape, refusal: object) -> None:
    working = small()
    assert (edits.widen(order, working, KNOWN) or edits.settle(order, working, KNOWN)) == refusal

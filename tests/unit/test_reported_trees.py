"""A provider tree after a report: operators' contents stay, and no more is offered than is free."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest

from bus.reports import Inventory, ProviderReport
from placement_worker.core.reports import reported, settled, swept
from placement_worker.core.trees import ProviderState, Reported, Tree
from tests.support.ids import uid
from tests.support.placement_builders import a_provider, a_report

A, B, C, D = (uid(number, "a") for number in (1, 2, 3, 4))
RACK, OTHER = uid(1, "e"), uid(2, "e")
GPU, LICENCE = "CUSTOM_GPU", "CUSTOM_LICENCE"


def vcpu(total: int, **more: Any) -> dict[str, Inventory]:
    return {"VCPU": Inventory(total=total, **more)}


def first(*children: ProviderReport, **root: Any) -> Tree:
    return reported(Tree(A), a_report(1, *children, **root))


def again(tree: Tree, *children: ProviderReport, **root: Any) -> Tree:
    return reported(tree, a_report(1, *children, sequence=tree.sequence + 1, **root))


def changed(tree: Tree, provider: str, **more: Any) -> Tree:
    """An operator's edit, or a claim."""
    return replace(
        tree, providers=tuple(replace(one, **more) if one.uuid == provider else one for one in tree.providers)
    )


def with_child(tree: Tree, provider: str, parent: str) -> Tree:
    made = ProviderState(9, provider, provider, parent, 1, 1, vcpu(2), {"VCPU": 0}, (), ())
    return replace(tree, providers=(*tree.providers, made))


def of(tree: Tree, provider: str = A) -> ProviderState:
    return next(one for one in tree.providers if one.uuid == provider)


def names(tree: Tree) -> list[str]:
    return [provider.uuid for provider in tree.providers]


# Owners


def test_reported_contents_disappear_with_the_report() -> None:
    tree = first(a_provider(2, 1), traits=("CUSTOM_X", "CUSTOM_Y"), aggregates=(RACK,))
    tree = again(tree, traits=("CUSTOM_Y",))
    assert names(tree) == [A]
    assert (of(tree).traits, of(tree).aggregates) == (("CUSTOM_Y",), ())


def test_traits_and_aggregates_of_others_stay() -> None:
    tree = first(traits=("CUSTOM_X",), aggregates=(RACK,))
    tree = changed(tree, A, traits=("CUSTOM_GOLD", "CUSTOM_X"), aggregates=(RACK, OTHER))
    tree = again(tree, traits=("CUSTOM_Y",))
    assert (of(tree).traits, of(tree).aggregates) == (("CUSTOM_GOLD", "CUSTOM_Y"), (OTHER,))
    assert again(tree, traits=("CUSTOM_Y",)).providers == tree.providers


def test_contents_that_an_operator_added_first_stay() -> None:
    tree = changed(first(), A, traits=("CUSTOM_GOLD",), aggregates=(OTHER,))
    tree = again(again(tree, traits=("CUSTOM_GOLD",), aggregates=(OTHER,)))
    assert (of(tree).traits, of(tree).aggregates) == (("CUSTOM_GOLD",), (OTHER,))


def test_traits_that_an_operator_took_away_come_back_with_the_next_report() -> None:
    tree = changed(first(traits=("CUSTOM_X",)), A, traits=())
    assert of(again(tree, traits=("CUSTOM_X",))).traits == ("CUSTOM_X",)


def test_inventory_of_others_stays_and_what_a_report_names_is_its_own_from_then_on() -> None:
    tree = first(inventories=vcpu(8))
    both = {**vcpu(8), LICENCE: Inventory(total=5)}
    tree = changed(tree, A, inventories=both, used={"VCPU": 0, LICENCE: 2})
    assert again(tree, inventories=vcpu(8)).providers == tree.providers
    tree = again(tree, inventories={LICENCE: Inventory(total=3)})
    assert of(tree).inventories == {LICENCE: Inventory(total=3)}
    assert of(again(tree, inventories=vcpu(8))).inventories == {
        **vcpu(8),
        LICENCE: Inventory(total=3, reserved=3),
    }


def test_children_of_others_stay_open_and_so_does_what_is_above_them() -> None:
    tree = first(a_provider(2, 1), a_provider(3, 1))
    tree = again(with_child(with_child(tree, D, A), uid(5, "a"), B))
    assert names(tree) == [A, B, D, uid(5, "a")]
    assert of(tree, B).inventories["VCPU"].capacity == 0
    assert of(tree, D) == of(with_child(tree, D, A), D)
    assert of(tree, uid(5, "a")).parent == B
    without = replace(
        tree, providers=tuple(provider for provider in tree.providers if provider.uuid != uid(5, "a"))
    )
    assert names(again(without)) == [A, D]


def test_a_new_owner_takes_over_the_reported_contents() -> None:
    tree = first(a_provider(2, 1), traits=("CUSTOM_X",))
    tree = changed(tree, A, traits=("CUSTOM_GOLD", "CUSTOM_X"))
    moved = reported(tree, msgspec.structs.replace(a_report(1, sequence=2, cell="c2"), agent="another"))
    assert (names(moved), of(moved).traits) == ([A], ("CUSTOM_GOLD",))


def test_with_a_root_that_is_gone_goes_all_below_it() -> None:
    assert swept(with_child(first(), D, A)).providers == ()


def test_a_tree_that_comes_back_has_what_others_put_there_as_it_was() -> None:
    licences = Inventory(total=5, reserved=1)
    tree = first(a_provider(2, 1, inventories=vcpu(4)), inventories=vcpu(8))
    tree = changed(
        with_child(tree, D, A), A, inventories={**vcpu(8), LICENCE: licences}, used={"VCPU": 3, LICENCE: 2}
    )
    tree = changed(tree, B, inventories={**vcpu(4), LICENCE: licences}, used={"VCPU": 1, LICENCE: 0})
    gone = swept(replace(tree, gone=True))
    closed = [inventory for provider in gone.providers for inventory in provider.inventories.values()]
    assert [inventory.capacity for inventory in closed] == [0] * 5
    assert swept(gone) == gone
    back = again(gone, a_provider(2, 1, inventories=vcpu(4)), inventories=vcpu(8))
    for provider in (A, B, D):
        assert of(back, provider).inventories == of(tree, provider).inventories
        assert of(back, provider).withheld == {}
        assert of(back, provider).reported == of(tree, provider).reported


def test_foreign_contents_of_a_removed_child_stay() -> None:
    tree = first(a_provider(2, 1, inventories=vcpu(4)), inventories=vcpu(8))
    both = {**vcpu(4), LICENCE: Inventory(total=5)}
    tree = changed(tree, B, inventories=both, used={"VCPU": 1, LICENCE: 0})
    without = again(tree, inventories=vcpu(8))
    assert of(without, B).inventories == {**vcpu(4, reserved=4), LICENCE: Inventory(total=5)}
    assert of(again(without, a_provider(2, 1, inventories=vcpu(4))), B).inventories == both


def test_a_made_provider_is_wholly_reported() -> None:
    tree = first(traits=("CUSTOM_X",), aggregates=(RACK,), inventories=vcpu(8))
    put = Reported(True, frozenset({"VCPU"}), frozenset({"CUSTOM_X"}), frozenset({RACK}))
    assert of(tree).reported == put
    tree = again(with_child(first(), D, A), a_provider(4, 1, inventories=vcpu(2)))
    assert of(tree, D).reported == Reported(False, frozenset({"VCPU"}))


# Inventory that moves while it is in use


def sold(tree: Tree) -> tuple[int, int]:
    used = free = 0
    for provider in tree.providers:
        for name, inventory in provider.inventories.items():
            if name == "VCPU":
                used += provider.used[name]
                free += max(inventory.capacity - provider.used[name], 0)
    return used, free


def numa(*totals: int, **more: Any) -> list[ProviderReport]:
    return [a_provider(2 + index, 1, inventories=vcpu(total, **more)) for index, total in enumerate(totals)]


MEMORY = {"MEMORY_MB": Inventory(total=1024)}


@pytest.mark.parametrize(
    ("used", "totals", "free", "withheld"),
    [
        pytest.param(0, (4, 4), 8, {}, id="none in use"),
        pytest.param(4, (4, 4), 4, {B: 4}, id="half in use"),
        pytest.param(3, (4, 4), 5, {B: 3}, id="less than a child"),
        pytest.param(6, (4, 4), 2, {B: 4, C: 2}, id="more than a child"),
        pytest.param(8, (4, 4), 0, {B: 4, C: 4}, id="all in use"),
        pytest.param(8, (2, 2), 0, {B: 2, C: 2}, id="and fewer than before"),
        pytest.param(4, (8, 8), 12, {B: 4}, id="and more than before"),
    ],
)
def test_allocations_of_a_flat_host_are_withheld_from_its_children(
    used: int, totals: tuple[int, ...], free: int, withheld: Mapping[str, int]
) -> None:
    tree = changed(first(inventories=vcpu(8)), A, used={"VCPU": used})
    nested = again(tree, *numa(*totals), inventories=MEMORY)
    assert sold(nested) == (used, free)
    assert {
        provider.uuid: provider.withheld["VCPU"] for provider in nested.providers if provider.withheld
    } == withheld
    assert again(nested, *numa(*totals), inventories=MEMORY).providers == nested.providers
    assert settled(nested) == nested


def test_released_amounts_open_with_the_next_report_or_sweep() -> None:
    tree = changed(first(inventories=vcpu(8)), A, used={"VCPU": 6})
    nested = changed(again(tree, *numa(4, 4), inventories=MEMORY), A, used={"VCPU": 1, "MEMORY_MB": 0})
    assert sold(nested) == (1, 2)
    for later in (settled(nested), again(nested, *numa(4, 4), inventories=MEMORY)):
        assert sold(later) == (1, 7)
        assert [
            provider.shape - was.shape
            for provider, was in zip(later.providers, nested.providers, strict=True)
        ] == [0, 1, 1]
    free = changed(settled(nested), A, used={"VCPU": 0, "MEMORY_MB": 0})
    assert sold(settled(free)) == (0, 8)
    assert all(not provider.withheld for provider in settled(free).providers)


def test_also_where_a_unit_is_sold_many_times() -> None:
    tree = changed(first(inventories=vcpu(8, allocation_ratio=16.0)), A, used={"VCPU": 50})
    nested = again(tree, *numa(4, 4, allocation_ratio=16.0), inventories=MEMORY)
    used, free = sold(nested)
    assert used == 50 and 62 <= free <= 78  # whole units are withheld


def test_a_host_that_only_shrank_withholds_nothing_from_its_neighbours() -> None:
    tree = first(*numa(4, 4), inventories=MEMORY)
    tree = changed(tree, B, used={"VCPU": 4})
    assert sold(again(tree, *numa(2, 4), inventories=MEMORY)) == (4, 4)
    assert sold(again(tree, *numa(2, 6), inventories=MEMORY)) == (
        4,
        4,
    )  # what it lost did not come to another


def test_inventory_set_by_an_operator_is_no_longer_withheld() -> None:
    tree = changed(first(inventories=vcpu(8)), A, used={"VCPU": 4})
    child = of(again(tree, *numa(4, 4), inventories=MEMORY), B)
    assert child.withheld_with(child.inventories) == {"VCPU": 4}
    assert child.withheld_with(vcpu(4)) == child.withheld_with({}) == {}


@pytest.mark.parametrize("seed", range(20))
def test_random_reports_and_claims_never_oversell(seed: int) -> None:
    chance = Random(seed)
    tree, total = first(inventories=vcpu(12)), 12
    for _ in range(200):
        step = chance.random()
        if step < 0.2:
            parts = chance.choice([(), (12,), (6, 6), (4, 4, 4), (1, 11), (2, 4, 6)])
            tree = again(tree, *numa(*parts), inventories=MEMORY if parts else vcpu(12))
        elif step < 0.3:
            tree = settled(tree)
        else:
            one = chance.choice([provider for provider in tree.providers if "VCPU" in provider.inventories])
            used = one.used["VCPU"]
            if step < 0.7 and used < one.inventories["VCPU"].capacity:
                used += 1
            elif used:
                used -= 1
            tree = changed(tree, one.uuid, used={**one.used, "VCPU": used})
        assert sum(sold(tree)) <= total
    for provider in tree.providers:
        tree = changed(tree, provider.uuid, used=dict.fromkeys(provider.used, 0))
    assert sold(again(tree, *numa(6, 6), inventories=MEMORY)) == (0, 12)


def test_rounding_of_a_ratio_opens_no_capacity_elsewhere() -> None:
    """One of B's is used: withholding all four that could be had of it withholds three."""
    half = vcpu(2, allocation_ratio=2.0)
    tree = first(a_provider(2, 1, inventories=vcpu(2, reserved=2, allocation_ratio=2.0)), inventories=half)
    tree = changed(changed(tree, A, used={"VCPU": 4}), B, used={"VCPU": 1})
    children = a_provider(2, 1, inventories=half), a_provider(3, 1, inventories=half)
    tree = again(tree, *children, inventories=MEMORY)
    assert [of(tree, one).inventories["VCPU"].capacity for one in (A, B, C)] == [0, 0, 2]
    back = settled(changed(tree, A, used={"VCPU": 0}))
    assert [of(back, one).inventories["VCPU"].capacity for one in (A, B, C)] == [0, 4, 4]

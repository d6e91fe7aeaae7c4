"""A provider tree after a report: operators' contents stay, and no more is offered than is free."""

import dataclasses
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from bus.agent_builds import reshaped_mappings
from bus.reports import GuestPlace, Inventory, ProviderReport
from bus.resources import Provider
from bus.vocabulary import Allocations
from compute_sim.core.device_book import fits_tree, reshaping
from compute_sim.core.drivers import FlatDriver, NumaDriver, build_tree
from compute_sim.core.provider_tree import ProviderTree, TreeProvider, answered, child_id, differences
from placement_worker.core.reports import released, reported, settled, swept
from placement_worker.core.trees import ProviderState, Tree
from tests.support.ids import uid
from tests.support.placement_builders import a_provider, a_report

A, B, C, D = (uid(number, "a") for number in (1, 2, 3, 4))
RACK, OTHER = uid(1, "e"), uid(2, "e")
LICENCE = "CUSTOM_LICENCE"


def vcpu(total: int, **more: Any) -> dict[str, Inventory]:
    return {"VCPU": Inventory(total=total, **more)}


def first(*children: ProviderReport, **root: Any) -> Tree:
    return reported(Tree(A), a_report(1, *children, **root))


def again(tree: Tree, *children: ProviderReport, **root: Any) -> Tree:
    return reported(tree, a_report(1, *children, sequence=tree.sequence + 1, **root))


def changed(tree: Tree, provider: str, **more: Any) -> Tree:
    """An operator's edit, or a claim."""
    return dataclasses.replace(
        tree,
        providers=tuple(
            dataclasses.replace(one, **more) if one.uuid == provider else one for one in tree.providers
        ),
    )


def with_child(tree: Tree, provider: str, parent: str) -> Tree:
    made = ProviderState(9, provider, provider, parent, 1, 1, vcpu(2), {"VCPU": 0}, (), ())
    return dataclasses.replace(tree, providers=(*tree.providers, made))


def of(tree: Tree, provider: str = A) -> ProviderState:
    return next(one for one in tree.providers if one.uuid == provider)


# Owners


def test_reports_keep_traits_and_aggregates_of_operators() -> None:
    tree = first(traits=("CUSTOM_X",), aggregates=(RACK,))
    tree = changed(tree, A, traits=("CUSTOM_GOLD", "CUSTOM_X"), aggregates=(RACK, OTHER))
    tree = again(tree, traits=("CUSTOM_Y",))
    assert (of(tree).traits, of(tree).aggregates) == (("CUSTOM_GOLD", "CUSTOM_Y"), (OTHER,))
    assert again(tree, traits=("CUSTOM_Y",)).providers == tree.providers


def test_a_returning_tree_keeps_what_operators_added() -> None:
    licences = Inventory(total=5, reserved=1)
    tree = first(a_provider(2, 1, inventories=vcpu(4)), inventories=vcpu(8))
    tree = changed(
        with_child(tree, D, A), A, inventories={**vcpu(8), LICENCE: licences}, used={"VCPU": 3, LICENCE: 2}
    )
    tree = changed(tree, B, inventories={**vcpu(4), LICENCE: licences}, used={"VCPU": 1, LICENCE: 0})
    gone = swept(dataclasses.replace(tree, gone=True))
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


# Nodes, which are indivisible


def a_node(tree: Tree, class_: str, reserved: int = 0) -> Tree:
    one = {class_: Inventory(total=1, reserved=reserved, max_unit=1)}
    return reported(tree, a_report(1, sequence=tree.sequence + 1, name=A, inventories=one))


def offered(tree: Tree) -> set[str]:
    root = of(tree)
    return {name for name, has in root.inventories.items() if has.capacity > root.used[name]}


def after_release(tree: Tree) -> Tree:
    """Return the tree after the release of the consumer that holds the node by CUSTOM_ONE."""
    return released(changed(tree, A, used=dict.fromkeys(of(tree).used, 0)), {"CUSTOM_ONE"})


def test_another_class_of_a_held_node_is_reserved_until_the_release() -> None:
    tree = changed(a_node(Tree(A), "CUSTOM_ONE"), A, used={"CUSTOM_ONE": 1})
    for sequence, class_ in enumerate(("CUSTOM_TWO", "CUSTOM_TWO", "CUSTOM_THREE"), 1):
        tree = a_node(tree, class_)
        assert of(tree).inventories.keys() == {"CUSTOM_ONE", class_}
        assert offered(tree) == set()
        assert settled(tree) == tree
        assert of(tree).shape <= 1 + sequence
    left = after_release(tree)
    assert ({*of(left).inventories}, offered(left)) == ({"CUSTOM_THREE"}, {"CUSTOM_THREE"})
    assert (of(left).shape, of(left).withheld) == (of(tree).shape + 1, {})


def test_a_node_that_ironic_closed_stays_closed_when_its_former_class_is_released() -> None:
    tree = changed(a_node(Tree(A), "CUSTOM_ONE"), A, used={"CUSTOM_ONE": 1})
    tree = a_node(tree, "CUSTOM_TWO", reserved=1)
    left = after_release(tree)
    assert ({*of(left).inventories}, offered(left)) == ({"CUSTOM_TWO"}, set())


def test_a_held_node_whose_class_is_changed_back_keeps_one_class() -> None:
    tree = changed(a_node(Tree(A), "CUSTOM_ONE"), A, used={"CUSTOM_ONE": 1})
    back = a_node(a_node(tree, "CUSTOM_TWO"), "CUSTOM_ONE")
    assert of(back).inventories == of(tree).inventories
    assert of(after_release(back)).inventories == of(tree).inventories


def test_classes_that_operators_added_to_a_node_are_not_reserved() -> None:
    tree = a_node(Tree(A), "CUSTOM_ONE")
    both = of(tree).inventories | {LICENCE: Inventory(total=5)}
    tree = a_node(changed(tree, A, inventories=both, used={"CUSTOM_ONE": 1, LICENCE: 0}), "CUSTOM_TWO")
    assert offered(tree) == {LICENCE}
    assert of(tree).inventories.keys() == {"CUSTOM_ONE", "CUSTOM_TWO", LICENCE}


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


def test_inventory_set_by_an_operator_is_no_longer_withheld() -> None:
    tree = changed(first(inventories=vcpu(8)), A, used={"VCPU": 4})
    child = of(again(tree, *numa(4, 4), inventories=MEMORY), B)
    assert child.withheld_with(child.inventories) == {"VCPU": 4}
    assert child.withheld_with(vcpu(4)) == child.withheld_with({}) == {}


@pytest.mark.parametrize("seed", range(4))
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


HOST = uid(1, "c")
CELL0, CELL1 = (child_id(HOST, f"h_numa{number}") for number in (0, 1))
FLAT = FlatDriver({name: Inventory(total=16) for name in ("VCPU", "MEMORY_MB", "DISK_GB")})
SMALLER = NumaDriver(vcpus=6, vcpu_ratio=2.0, pcpus=0, memory_mb=8, reserved_mb=0, pages={}, disk_gb=16)
NUMA = NumaDriver(vcpus=8, vcpu_ratio=1.0, pcpus=2, memory_mb=8, reserved_mb=0, pages={}, disk_gb=16)


def tree(*drivers: object) -> ProviderTree:
    return build_tree(HOST, "h", drivers)  # type: ignore[arg-type]


def stored(was: ProviderTree, *guests: Allocations, others: tuple[str, ...] = ()) -> tuple[TreeProvider, ...]:
    return answered(
        Provider(
            id=one.id,
            name=one.name,
            parent=one.parent,
            root=HOST,
            generation=1,
            inventories=one.inventories,
            kept_classes=others,
            used={
                name: sum(held.get(one.id, {}).get(name, 0) for held in guests) for name in one.inventories
            },
        )
        for one in was.report()
    )[HOST]


def flat(vcpus: int, memory: int = 0) -> Allocations:
    return {HOST: {"VCPU": vcpus, **({"MEMORY_MB": memory} if memory else {}), "DISK_GB": 1}}


def reply(was: ProviderTree, now: ProviderTree, *guests: Allocations) -> list[GuestPlace]:
    found = reshaping(
        stored(was, *guests), now, [((uid(index), 1), held) for index, held in enumerate(guests)]
    )
    return [] if found is None else list(found.guests)


NOTHING_MOVES = {
    "nothing is known yet": ((), tree(NUMA)),
    "the same tree": (stored(tree(FLAT), flat(2)), tree(FLAT)),
    "another, of which nothing is in use": (stored(tree(FLAT)), tree(NUMA)),
    "less of it": (stored(tree(NUMA), {CELL0: {"VCPU": 2}}), tree(NumaDriver(vcpus=1, disk_gb=1))),
    "gone, and nobody has it now": (stored(tree(FLAT), {HOST: {"DISK_GB": 1}}), tree(NumaDriver(disk_gb=0))),
    "what an operator put there": (
        stored(tree(FLAT), flat(2), others=("VCPU", "MEMORY_MB", "DISK_GB")),
        tree(NUMA),
    ),
}


@pytest.mark.parametrize("was, now", NOTHING_MOVES.values(), ids=NOTHING_MOVES)
def test_a_report_without_a_reshape_moves_nothing(was: tuple[TreeProvider, ...], now: ProviderTree) -> None:
    assert reshaping(was, now, []) is None


PLACES = {
    "a guest goes to one cell as a whole": ([flat(2, 4)], [{CELL0: {"VCPU": 2, "MEMORY_MB": 4}}]),
    "the next to the next, when the first is full": (
        [flat(6, 4), flat(6, 4)],
        [{CELL0: {"VCPU": 6, "MEMORY_MB": 4}}, {CELL1: {"VCPU": 6, "MEMORY_MB": 4}}],
    ),
    "one that no cell can hold is spread": ([flat(10)], [{CELL0: {"VCPU": 8}, CELL1: {"VCPU": 2}}]),
    "of one that has no room nothing is said": (
        [flat(10), flat(10)],
        [{CELL0: {"VCPU": 8}, CELL1: {"VCPU": 2}}],
    ),
    "one that holds none of it stays": ([flat(2), {HOST: {"DISK_GB": 3}}], [{CELL0: {"VCPU": 2}}]),
}


@pytest.mark.parametrize("guests, places", PLACES.values(), ids=PLACES)
def test_a_reshape_distributes_the_guests(guests: list[Allocations], places: list[Allocations]) -> None:
    found = reply(tree(FLAT), tree(NUMA), *guests)
    assert [place.allocations for place in sorted(found, key=lambda place: place.build)] == places


def test_a_reshape_respects_max_unit() -> None:
    (one,) = reply(tree(FLAT), tree(SMALLER), flat(7))
    assert one.allocations == {CELL0: {"VCPU": 6}, CELL1: {"VCPU": 1}}


def test_a_guest_that_does_not_fit_its_tree_is_found() -> None:
    pool = uid(9, "a")
    assert fits_tree({CELL0: {"VCPU": 1}}, tree(NUMA), {})
    assert not fits_tree({HOST: {"VCPU": 1}}, tree(NUMA), {})
    assert not fits_tree({CELL0: {"VCPU": 1}}, tree(FLAT), {})
    assert not fits_tree({HOST: {"VCPU": 1}, pool: {"DISK_GB": 1}}, tree(FLAT), {})
    assert fits_tree({HOST: {"VCPU": 1}, pool: {"DISK_GB": 1}}, tree(FLAT), {pool: None})


MAPPINGS = {
    "nothing is mapped": ({}, {HOST: {"VCPU": 1}}, {CELL0: {"VCPU": 1}}, {}),
    "who serves it goes": ({"1": (HOST,)}, {HOST: {"VCPU": 1}}, {CELL0: {"VCPU": 1}}, {"1": (CELL0,)}),
    "two become one": ({"_a": (CELL0,), "_b": (CELL1,)}, {CELL0: {"VCPU": 1}, CELL1: {"VCPU": 2}},
        {HOST: {"VCPU": 3}}, {"_a": (HOST,), "_b": (HOST,)}),
    "one stays": ({"_a": (CELL0,), "_d": (HOST,)}, {CELL0: {"VCPU": 1}, HOST: {"DISK_GB": 2}},
        {CELL1: {"VCPU": 1}, HOST: {"DISK_GB": 2}}, {"_a": (CELL1,), "_d": (HOST,)}),
    "it holds a part of it still": ({"1": (HOST,)}, {HOST: {"VCPU": 1, "DISK_GB": 2}},
        {CELL1: {"VCPU": 1}, HOST: {"DISK_GB": 2}}, {"1": (HOST, CELL1)}),
}  # fmt: skip


@pytest.mark.parametrize("mappings, before, after, then", MAPPINGS.values(), ids=MAPPINGS)
def test_mappings_after_a_reshape(
    mappings: dict[str, tuple[str, ...]], before: Allocations, after: Allocations, then: object
) -> None:
    assert reshaped_mappings(mappings, before, after) == then


ROOT = uid(1, "c")
NUMA_WITH_TRAITS = NumaDriver(
    cells=1, vcpus=4, vcpu_ratio=1.0, pcpus=0, memory_mb=0, pages={}, disk_gb=9, traits=("COMPUTE_NODE",)
)


def stored_as(tree: ProviderTree) -> dict[str, Provider]:
    return {
        report.name: Provider(
            id=report.id, name=report.name, parent=report.parent, root=tree.root, generation=1,
            inventories=report.inventories, traits=report.traits, aggregates=report.aggregates,
        )
        for report in tree.report()
    }  # fmt: skip


def with_fields(provider: str, /, **fields: object) -> Callable[[dict[str, Provider]], None]:
    def change(stored: dict[str, Provider]) -> None:
        stored[provider] = replace(stored[provider], **fields)

    return change


def more(id_: str, **fields: object) -> Callable[[dict[str, Provider]], None]:
    def add(stored: dict[str, Provider]) -> None:
        stored[id_] = Provider(id=uid(9, "d"), name=id_, parent=ROOT, root=ROOT, generation=1, **fields)  # type: ignore[arg-type]

    return add


def without(name: str) -> Callable[[dict[str, Provider]], object]:
    return lambda stored: stored.pop(name)


HALF, SHUT = Inventory(total=4, reserved=2, max_unit=4), Inventory(total=4, reserved=4, max_unit=4)
DISK = {"DISK_GB": Inventory(total=9, max_unit=9)}
COMPARED = {
    "just as it was reported": (lambda stored: None, []),
    "a provider less": (without("h_numa0"), ["+h_numa0"]),
    "a class less": (with_fields("h", inventories={}), ["h: no → 9 DISK_GB"]),
    "other figures": (
        with_fields("h", inventories={"DISK_GB": Inventory(total=8, max_unit=9)}), ["h: 8 → 9 DISK_GB"],
    ),
    "a trait less, another more": (
        with_fields("h", traits=("CUSTOM_A",)), ["h: traits +COMPUTE_NODE, -CUSTOM_A"],
    ),
    "an aggregate more": (with_fields("h", aggregates=(uid(5, "e"),)), [f"h: aggregates -{uid(5, 'e')}"]),
    "another parent": (with_fields("h_numa0", parent=uid(7, "c")), ["h_numa0: its name or parent"]),
    "what an operator put on it": (
        with_fields(
            "h",
            inventories={**DISK, "CUSTOM_X": Inventory(total=1)}, kept_classes=("CUSTOM_X",),
            traits=("COMPUTE_NODE", "CUSTOM_T"), kept_traits=("CUSTOM_T",),
            aggregates=(uid(5, "e"),), kept_aggregates=(uid(5, "e"),),
        ), [],
    ),
    "a trait that both want": (with_fields("h", kept_traits=("COMPUTE_NODE",)), []),
    "an operator's provider": (
        more("op", inventories={"CUSTOM_X": Inventory(total=1)}, kept_classes=("CUSTOM_X",)), [],
    ),
    "a provider of before, closed while it is in use": (more("old", inventories={"PCPU": SHUT}), []),
    "a provider of before, open": (more("old", inventories={"PCPU": HALF}), ["-old"]),
    "a class of before, closed while it is in use": (
        with_fields("h", inventories={**DISK, "PCPU": SHUT}), [],
    ),
    "less reserved than we say": (
        with_fields("h_numa0", inventories={"VCPU": Inventory(total=5, max_unit=4)}), ["h_numa0: 5 → 4 VCPU"],
    ),
    "taken in under another name, for another cell has ours": (with_fields("h", name="h@c1"), []),
}  # fmt: skip


@pytest.mark.parametrize("change, found", COMPARED.values(), ids=COMPARED.keys())
@pytest.mark.parametrize("closed_too", [True, False])
def test_differences_between_a_tree_and_placement(
    change: Callable[[dict[str, Provider]], None], found: list[str], closed_too: bool
) -> None:
    assert compared(change, closed_too=closed_too) == found


def compared(change: Callable[[dict[str, Provider]], None], *, closed_too: bool) -> list[str]:
    stored = stored_as(build_tree(ROOT, "h", [NUMA_WITH_TRAITS]))
    change(stored)
    (known,) = answered(stored.values()).values()
    tree = build_tree(ROOT, "h", [NUMA_WITH_TRAITS], known)
    return sorted(differences(known, tree, closed_too=closed_too))

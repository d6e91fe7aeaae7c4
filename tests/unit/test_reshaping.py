"""The reshape that an agent reports when its drivers produce another tree."""

import pytest

from bus.agent_builds import reshaped_mappings
from bus.reports import GuestPlace, Inventory, InventoryMove
from bus.resources import Provider
from bus.vocabulary import Allocations
from compute_sim.core.device_book import fits_tree, reshaping
from compute_sim.core.drivers import FlatDriver, NumaDriver, build_tree
from compute_sim.core.provider_tree import ProviderTree, TreeProvider, answered, child_id
from tests.support.ids import uid

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


def said(was: ProviderTree, now: ProviderTree, *guests: Allocations) -> list[GuestPlace]:
    found = reshaping(
        stored(was, *guests), now, [((uid(index), 1), held) for index, held in enumerate(guests)]
    )
    return [] if found is None else list(found.guests)


def test_what_is_in_use_and_told_elsewhere_moves_there() -> None:
    found = reshaping(stored(tree(FLAT), flat(2, 4)), tree(NUMA), [])
    assert found is not None and set(found.moves) == {
        InventoryMove(provider=HOST, resource_class="VCPU", to=(CELL0, CELL1)),
        InventoryMove(provider=HOST, resource_class="MEMORY_MB", to=(CELL0, CELL1)),
    }


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
def test_nothing_moves(was: tuple[TreeProvider, ...], now: ProviderTree) -> None:
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
def test_where_guests_are_then(guests: list[Allocations], places: list[Allocations]) -> None:
    found = said(tree(FLAT), tree(NUMA), *guests)
    assert [place.allocations for place in sorted(found, key=lambda place: place.build)] == places


def test_no_guest_gets_more_of_a_cell_than_one_may_have() -> None:
    (one,) = said(tree(FLAT), tree(SMALLER), flat(7))
    assert one.allocations == {CELL0: {"VCPU": 6}, CELL1: {"VCPU": 1}}


def test_and_back_again() -> None:
    found = said(tree(NUMA), tree(FLAT), {CELL0: {"VCPU": 2}, CELL1: {"VCPU": 3, "MEMORY_MB": 1}})
    assert [place.allocations for place in found] == [{HOST: {"VCPU": 5, "MEMORY_MB": 1}}]


def test_a_guest_that_holds_what_its_host_has_not_is_found_but_not_what_is_of_a_pool() -> None:
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
def test_who_serves_a_group_afterwards(
    mappings: dict[str, tuple[str, ...]], before: Allocations, after: Allocations, then: object
) -> None:
    assert reshaped_mappings(mappings, before, after) == then

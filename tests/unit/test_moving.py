"""New places of allocations after a reshape: all of them, or the report is refused."""

from dataclasses import replace as with_
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from bus.claims import holder_consumer
from bus.messages import InventoryReported
from bus.reports import GuestPlace, Inventory, InventoryMove, Reshaping
from bus.vocabulary import Allocations
from placement_worker.core.report_checks import complaint
from placement_worker.core.reports import reported
from placement_worker.core.reshape import NO_MOVES, TreeHolder, Unmovable, moves
from placement_worker.core.trees import ProviderState, Tree
from tests.support.ids import uid
from tests.support.placement_builders import a_provider, a_report

HOST, CELL0, CELL1, POOL = (uid(number, "a") for number in (1, 2, 3, 9))


def has(**totals: int) -> dict[str, Inventory]:
    return {name: Inventory(total=total) for name, total in totals.items()}


FLAT = reported(Tree(HOST), a_report(1, inventories=has(VCPU=16, MEMORY_MB=64, DISK_GB=100)))


def to_cells(*cells: int, **more: Any) -> InventoryReported:
    """Two NUMA cells with so many VCPUs each, and four times as much memory; the disk stays."""
    below = [
        a_provider(2 + index, 1, inventories=has(VCPU=vcpus, MEMORY_MB=4 * vcpus))
        for index, vcpus in enumerate(cells)
    ]
    to = tuple(one.id for one in below)
    moved = tuple(InventoryMove(provider=HOST, resource_class=name, to=to) for name in ("VCPU", "MEMORY_MB"))
    reshape = Reshaping(moves=moved, **more)
    return replace(a_report(1, *below, sequence=2, inventories=has(DISK_GB=100)), reshape=reshape)


def flat(vcpus: int, memory: int = 0, disk: int = 0) -> Allocations:
    figures = {"VCPU": vcpus, "MEMORY_MB": memory, "DISK_GB": disk}
    return {HOST: {name: amount for name, amount in figures.items() if amount}}


def holder(number: int, held: Allocations, **more: Any) -> TreeHolder:
    return TreeHolder(number, uid(number), 1, held, **more)


def used_by(*holders: TreeHolder, tree: Tree = FLAT) -> Tree:
    used = {one.uuid: dict(one.used) for one in tree.providers}
    for holder in holders:
        for provider, resources in holder.held.items():
            for name, amount in resources.items():
                used[provider][name] += amount
    providers = tuple(_with_used(one, used[one.uuid]) for one in tree.providers)
    return Tree(tree.root, tree.host, tree.cell, tree.agent, tree.zone, tree.sequence, False, providers)


def _with_used(state: ProviderState, used: dict[str, int]) -> ProviderState:
    return with_(state, used=used)


def at(cell: int, vcpus: int, memory: int = 0) -> Allocations:
    figures = {"VCPU": vcpus, "MEMORY_MB": memory}
    return {(CELL0, CELL1)[cell]: {name: amount for name, amount in figures.items() if amount}}


def on(build: int, where: Allocations, attempt: int = 1) -> GuestPlace:
    return GuestPlace(uid(build), attempt, where)


GO = {
    "nobody": ([], [], {}),
    "one, of whom nobody speaks": ([holder(1, flat(2, 8, 5))], [], {1: {**flat(0, 0, 5), **at(0, 2, 8)}}),
    "one where its agent has it": ([holder(1, flat(2, 8))], [on(1, at(1, 2, 8))], {1: at(1, 2, 8)}),
    "one that is spread, as its agent has it": ([holder(1, flat(10, 40))],
        [on(1, {**at(0, 4, 10), **at(1, 6, 30)})], {1: {**at(0, 4, 10), **at(1, 6, 30)}}),
    "its processors and its memory stay together": ([holder(1, flat(6, 4)), holder(2, flat(4, 8))], [],
        {1: at(0, 6, 4), 2: at(1, 4, 8)}),
    "guests first, others beside them": ([holder(1, flat(2)), holder(2, flat(7))], [on(2, at(0, 7))],
        {1: at(1, 2), 2: at(0, 7)}),
    "the largest first, of those nobody speaks of": (
        [holder(1, flat(3)), holder(2, flat(5)), holder(3, flat(8))],
        [],
        {1: at(1, 3), 2: at(1, 5), 3: at(0, 8)},
    ),
    "what is no guest's and does not move": ([holder(1, flat(0, 0, 5))], [], {}),
    "a guest of whom placement knows nothing (any more)": ([], [on(1, at(0, 2))], {}),
}  # fmt: skip


@pytest.mark.parametrize("holders, guests, then", GO.values(), ids=GO)
def test_new_places_of_allocations(
    holders: list[TreeHolder], guests: list[GuestPlace], then: dict[int, Allocations]
) -> None:
    report = to_cells(8, 8, guests=tuple(guests))
    found = moves(used_by(*holders), report, holders)
    assert {one.holder.id: one.held for one in found.moved} == then
    after = reported(used_by(*holders), report, 0, found)
    assert sums(after) == sums(used_by(*holders))
    assert all(one.used[name] <= has.capacity for one, name, has in stocks(after))
    assert not any(provider.withheld for provider in after.providers)  # nothing is left of the old
    assert "VCPU" not in after.providers[0].inventories


def sums(tree: Tree) -> dict[str, int]:
    found: dict[str, int] = {}
    for provider in tree.providers:
        for name, amount in provider.used.items():
            if amount:
                found[name] = found.get(name, 0) + amount
    return found


def stocks(tree: Tree) -> list[tuple[ProviderState, str, Inventory]]:
    return [
        (provider, name, has) for provider in tree.providers for name, has in provider.inventories.items()
    ]


def test_the_clean_up_of_an_attempt_goes_where_that_guest_is() -> None:
    kept = TreeHolder(1, holder_consumer(uid(7), 1), 3, flat(2), build=False)
    again = TreeHolder(2, uid(7), 5, flat(3))
    says = to_cells(8, 8, guests=(on(7, at(1, 2), attempt=1), on(7, at(0, 3), attempt=2)))
    assert [one.held for one in moves(used_by(kept), says, [kept]).moved] == [at(1, 2)]
    assert [one.held for one in moves(used_by(kept, again), says, [kept, again]).moved] == [
        at(1, 2),
        at(0, 3),
    ]


def test_back_to_a_flat_host_and_to_another_class() -> None:
    cells = reported(FLAT, to_cells(8, 8))
    one = holder(1, {CELL0: {"VCPU": 2}, CELL1: {"VCPU": 3, "MEMORY_MB": 8}})
    back = Reshaping(
        moves=(
            InventoryMove(provider=CELL0, resource_class="VCPU", to=(HOST,), becomes="PCPU"),
            InventoryMove(provider=CELL1, resource_class="VCPU", to=(HOST,), becomes="PCPU"),
            InventoryMove(provider=CELL1, resource_class="MEMORY_MB", to=(HOST,)),
        )
    )
    report = a_report(1, sequence=3, inventories=has(PCPU=16, MEMORY_MB=64, DISK_GB=100))
    found = moves(used_by(one, tree=cells), replace(report, reshape=back), [one])
    assert [one.held for one in found.moved] == [{HOST: {"PCPU": 5, "MEMORY_MB": 8}}]
    after = reported(used_by(one, tree=cells), replace(report, reshape=back), 0, found)
    assert [provider.uuid for provider in after.providers] == [HOST]
    assert after.providers[0].used == {"PCPU": 5, "MEMORY_MB": 8, "DISK_GB": 0}


def test_withheld_inventory_opens_when_its_guests_move() -> None:
    one = holder(1, flat(4, 16))
    silent = reported(used_by(one), replace(to_cells(8, 8), reshape=None))
    assert sum(provider.withheld.get("VCPU", 0) for provider in silent.providers) == 4
    report = replace(to_cells(8, 8), sequence=3)
    found = moves(silent, report, [one])
    after = reported(silent, report, 0, found)
    left: list[tuple[set[str], dict[str, int], dict[str, int]]] = [
        ({"DISK_GB"}, {"DISK_GB": 0}, {}),
        ({"VCPU", "MEMORY_MB"}, {"VCPU": 4, "MEMORY_MB": 16}, {}),
        ({"VCPU", "MEMORY_MB"}, {"VCPU": 0, "MEMORY_MB": 0}, {}),
    ]
    assert [(set(one.inventories), one.used, one.withheld) for one in after.providers] == left


def test_inventory_that_does_not_move_is_withheld() -> None:
    one = holder(1, flat(4, 16))
    report = to_cells(8, 8)
    assert report.reshape is not None
    report = replace(report, reshape=replace(report.reshape, moves=report.reshape.moves[:1]))
    after = reported(used_by(one), report, 0, moves(used_by(one), report, [one]))
    assert after.providers[0].inventories["MEMORY_MB"].capacity == 0
    assert after.providers[0].used == {"MEMORY_MB": 16, "DISK_GB": 0}
    assert after.providers[1].used["VCPU"] == 4
    assert sum(provider.withheld.get("MEMORY_MB", 0) for provider in after.providers) == 16


def test_a_report_that_comes_again_or_late_moves_nobody() -> None:
    one = holder(1, flat(2, 8))
    report = to_cells(8, 8)
    found = moves(used_by(one), report, [one])
    after = reported(used_by(one), report, 0, found)
    then = TreeHolder(1, one.uuid, 1, found.moved[0].held)
    assert moves(after, report, [then]) is NO_MOVES
    news = replace(report, sequence=9)
    assert moves(after, news, [then]).moved == []
    assert reported(after, news, 0, moves(after, news, [then])).providers == after.providers


def test_generations_and_shapes_move_as_with_any_change_of_a_tree() -> None:
    one = holder(1, flat(2))
    was = reported(used_by(one), replace(to_cells(8, 8), reshape=None))  # the cells are there already
    report = replace(to_cells(8, 8), sequence=3)
    after = reported(was, report, 0, moves(was, report, [one]))
    before = {provider.uuid: (provider.generation, provider.shape) for provider in was.providers}
    moved = {provider.uuid: (provider.generation, provider.shape) for provider in after.providers}
    assert moved[HOST] == tuple(number + 1 for number in before[HOST])  # its inventory went
    assert moved[CELL0] == tuple(number + 1 for number in before[CELL0])  # nothing of it is withheld any more
    assert moved[CELL1] == before[CELL1]


def said(*guests: GuestPlace, cells: tuple[int, ...] = (8, 8)) -> InventoryReported:
    return to_cells(*cells, guests=guests)


TWO = [holder(1, flat(2, 8))]
REFUSED = {
    "there is no room for one": (to_cells(4, 4), [holder(1, flat(5, 2))],
        "2 MEMORY_MB, 5 VCPU, which fits nowhere: host-2: 5 VCPU, 4 free; host-3: 5 VCPU, 4"),
    "there is none for the last": (to_cells(4, 4),
        [holder(1, flat(4)), holder(2, flat(4)), holder(3, flat(1))], "fits nowhere"),
    "only apart would it fit": (to_cells(4, 4), [holder(1, flat(6))], "fits nowhere"),
    "its agent has it where there is no room": (said(on(1, at(0, 5)), cells=(4, 8)), [holder(1, flat(5))],
        f"reshape.guests[0].allocations: {uid(1)} has no room at host-2: 5 VCPU"),
    "two guests in one place": (said(on(1, at(0, 5)), on(2, at(0, 5))),
        [holder(1, flat(5)), holder(2, flat(5))], "guests[1].allocations"),
    "its agent says less than it holds": (said(on(1, at(0, 1, 8))), TWO,
        "holds 8 MEMORY_MB, 2 VCPU, not 8 MEMORY_MB, 1 VCPU"),
    "its agent says more": (said(on(1, at(0, 3, 8))), TWO, "not 8 MEMORY_MB, 3 VCPU"),
    "its agent has it where that does not move to": (said(on(1, {HOST: {"DISK_GB": 2}})), TWO,
        f"DISK_GB of {uid(1)} does not move to {HOST}"),
}  # fmt: skip


@pytest.mark.parametrize("report, holders, why", REFUSED.values(), ids=REFUSED)
def test_an_impossible_reshape_is_refused_completely(
    report: InventoryReported, holders: list[TreeHolder], why: str
) -> None:
    with pytest.raises(Unmovable) as refused:
        moves(used_by(*holders), report, holders)
    assert why in str(refused.value)


def test_no_unit_rule_is_broken() -> None:
    report = to_cells(8, 8)
    large = tuple(
        replace(provider, inventories={**provider.inventories, "VCPU": Inventory(total=8, max_unit=2)})
        for provider in report.providers[1:]
    )
    with pytest.raises(Unmovable, match="3 VCPU breaks its max_unit"):
        moves(
            used_by(holder(1, flat(3))),
            replace(report, providers=(report.providers[0], *large)),
            [holder(1, flat(3))],
        )


def test_inventory_of_an_operator_is_not_moved_by_a_report() -> None:
    root = FLAT.providers[0]
    by_hand = with_(root, reported=with_(root.reported, classes=frozenset({"VCPU", "DISK_GB"})))
    with pytest.raises(Unmovable, match=r"moves\[1\].resource_class: MEMORY_MB of host-1 is an operator's"):
        moves(with_(FLAT, providers=(by_hand,)), to_cells(8, 8), [])


def wrong(**change: Any) -> InventoryReported:
    report = to_cells(8, 8)
    assert report.reshape is not None
    return replace(report, reshape=replace(report.reshape, **change))


def a_move(
    provider: str = HOST, resource_class: str = "VCPU", to: tuple[str, ...] = (CELL0,), **more: Any
) -> Any:
    return (InventoryMove(provider=provider, resource_class=resource_class, to=to, **more),)


SENSELESS = {
    "to a stranger": (wrong(moves=a_move(to=(POOL,))), f"moves[0].to: {POOL} is not in this tree"),
    "to one that has none": (wrong(moves=a_move(to=(HOST,))), f"moves[0].to: {HOST} has no VCPU"),
    "as what it has none of": (wrong(moves=a_move(becomes="PCPU")), f"moves[0].to: {CELL0} has no PCPU"),
    "of one that still has it": (wrong(moves=a_move(resource_class="DISK_GB")), "still has DISK_GB"),
    "twice": (wrong(moves=a_move() * 2), "moves[1]: VCPU of"),
    "a guest twice": (wrong(guests=(on(1, at(0, 1)),) * 2), "guests: attempt 1 of"),
    "of a tree that is gone": (replace(to_cells(8, 8), gone=True, providers=()), "reshape: of a tree"),
}


@pytest.mark.parametrize("report, why", SENSELESS.values(), ids=SENSELESS)
def test_invalid_reshapes_are_refused_whatever_is_stored(report: InventoryReported, why: str) -> None:
    assert why in complaint(report, lambda kind, name: True)
    assert not complaint(to_cells(8, 8), lambda kind, name: True)


@pytest.mark.parametrize("seed", range(40))
def test_random_reshapes_keep_amounts_and_never_oversell(seed: int) -> None:
    chance = Random(seed)
    holders, room = [], [16, 64]
    for number in range(1, chance.randint(2, 12)):
        vcpus = chance.randint(1, 4)
        memory = chance.choice((0, 4 * vcpus))
        if vcpus <= room[0] and memory <= room[1]:
            room = [room[0] - vcpus, room[1] - memory]
            holders.append(holder(number, flat(vcpus, memory, chance.choice((0, 3)))))
    report = to_cells(chance.choice((6, 8, 10)), 8)
    before = used_by(*holders)
    try:
        found = moves(before, report, holders)
    except Unmovable:
        return
    after = reported(before, report, 0, found)
    assert sums(after) == sums(before)
    assert all(one.used[name] <= has.capacity for one, name, has in stocks(after))
    for one in found.moved:
        for name in ("VCPU", "MEMORY_MB", "DISK_GB"):
            was = sum(some.get(name, 0) for some in one.holder.held.values())
            assert sum(some.get(name, 0) for some in one.held.values()) == was
        cells = {provider for provider in one.held if provider != HOST}
        assert len(cells) == 1

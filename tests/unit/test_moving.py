"""New places of allocations after a reshape: all of them, or the report is refused."""

from dataclasses import replace as with_
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from bus.claims import Claimed, Held, ReleaseRequested
from bus.messages import BuildReshaped, InventoryReported
from bus.queries import FindCandidates
from bus.reports import SHARES, GuestPlace, Inventory, InventoryMove, Reshaping
from bus.requests import ResourceGroup
from bus.resources import Provider
from bus.vocabulary import Allocations, Message
from cell_conductor.core.build import Build
from cell_conductor.core.events import AttemptLimits, Event, ReleaseAnswer, SwapAnswered
from placement_worker.core.reports import complaint, reported
from placement_worker.core.reshape import NO_MOVES, TreeHolder, Unmovable, moves
from placement_worker.core.trees import ProviderState, Tree
from scheduler_worker.core.choosing import mappings_of
from scheduler_worker.core.existing_claims import place_of
from tests.support.conductor_builders import (
    a_build_order,
    a_delete,
    a_placed,
    a_selection,
    an_agent_report,
    step,
)
from tests.support.ids import uid
from tests.support.index_source import source_of
from tests.support.placement_builders import a_provider, a_report
from tests.support.provider_trees import state, tree

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
    used = {state.uuid: dict(state.used) for state in tree.providers}
    for holder in holders:
        for provider, resources in holder.held.items():
            for name, amount in resources.items():
                used[provider][name] += amount
    return with_(tree, providers=tuple(with_(state, used=used[state.uuid]) for state in tree.providers))


def at(cell: int, vcpus: int, memory: int = 0) -> Allocations:
    figures = {"VCPU": vcpus, "MEMORY_MB": memory}
    return {(CELL0, CELL1)[cell]: {name: amount for name, amount in figures.items() if amount}}


def on(build: int, where: Allocations, attempt: int = 1) -> GuestPlace:
    return GuestPlace(uid(build), attempt, where)


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


def test_a_repeated_or_late_reshape_moves_nothing() -> None:
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


def reply(*guests: GuestPlace, cells: tuple[int, ...] = (8, 8)) -> InventoryReported:
    return to_cells(*cells, guests=guests)


TWO = [holder(1, flat(2, 8))]
REFUSED = {
    "there is no room for one": (to_cells(4, 4), [holder(1, flat(5, 2))],
        "2 MEMORY_MB, 5 VCPU, which fits nowhere: host-2: 5 VCPU, 4 free; host-3: 5 VCPU, 4"),
    "there is none for the last": (to_cells(4, 4),
        [holder(1, flat(4)), holder(2, flat(4)), holder(3, flat(1))], "fits nowhere"),
    "only apart would it fit": (to_cells(4, 4), [holder(1, flat(6))], "fits nowhere"),
    "its agent has it where there is no room": (reply(on(1, at(0, 5)), cells=(4, 8)), [holder(1, flat(5))],
        f"reshape.guests[0].allocations: {uid(1)} has no room at host-2: 5 VCPU"),
    "two guests in one place": (reply(on(1, at(0, 5)), on(2, at(0, 5))),
        [holder(1, flat(5)), holder(2, flat(5))], "guests[1].allocations"),
    "its agent says less than it holds": (reply(on(1, at(0, 1, 8))), TWO,
        "holds 8 MEMORY_MB, 2 VCPU, not 8 MEMORY_MB, 1 VCPU"),
    "its agent says more": (reply(on(1, at(0, 3, 8))), TWO, "not 8 MEMORY_MB, 3 VCPU"),
    "its agent has it where that does not move to": (reply(on(1, {HOST: {"DISK_GB": 2}})), TWO,
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
    "not possible for a deleted tree": (
        replace(to_cells(8, 8), gone=True, providers=()),
        "reshape: not possible",
    ),
}


@pytest.mark.parametrize("report, why", SENSELESS.values(), ids=SENSELESS)
def test_invalid_reshapes_are_refused(report: InventoryReported, why: str) -> None:
    assert why in complaint(report, lambda kind, name: True)
    assert not complaint(to_cells(8, 8), lambda kind, name: True)


@pytest.mark.parametrize("seed", range(10))
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


LIMITS = AttemptLimits()
PLACED = a_placed(generation=1)
FIRST = a_build_order(PLACED)
ON_HOST0, ON_HOST1 = (a_selection(number).root for number in (0, 1))
NUMA = {"numa0": {"VCPU": 1}}
FAILED = an_agent_report(FIRST, "failed", cause="no disk")
BUILT = an_agent_report(FIRST, "built")
SWAPPED = SwapAnswered(1, Claimed(choice=0, generation=2, number=5))


def sent(
    generation: int = 1, number: int = 9, root: str = ON_HOST0, allocations: Allocations = NUMA
) -> BuildReshaped:
    return BuildReshaped(
        build=PLACED.build, cell=PLACED.cell, root=root, generation=generation, number=number,
        allocations=allocations,
    )  # fmt: skip


def after(*events: Event, build: Build | None = None) -> tuple[Build, tuple[Message, ...]]:
    effects: tuple[Message, ...] = ()
    for event in events:
        build, effects = step(build, event, 0.0, LIMITS)
    assert build is not None
    return build, effects


def places(build: Build) -> list[Any]:
    was = (PLACED.chosen, *PLACED.alternates)
    return [
        selection.choice.allocations if selection != old else ""
        for selection, old in zip(build.hosts, was, strict=True)
    ]


OTHER = {"numa1": {"VCPU": 1}}
REPORTED: dict[str, tuple[list[Event], list[Any]]] = {
    "while it is being built": ([PLACED, sent()], [NUMA, "", ""]),
    "when it is active": ([PLACED, BUILT, sent()], [NUMA, "", ""]),
    "while its next host is being asked for": ([PLACED, FAILED, sent()], [NUMA, "", ""]),
    "while it is being deleted": ([PLACED, BUILT, a_delete(PLACED), sent()], [NUMA, "", ""]),
    "on its second host": ([PLACED, FAILED, SWAPPED, sent(2, root=ON_HOST1)], ["", NUMA, ""]),
    "twice": ([PLACED, sent(), sent()], [NUMA, "", ""]),
    "two, in order": ([PLACED, sent(), sent(number=10, allocations=OTHER)], [OTHER, "", ""]),
    "two, the later first": ([PLACED, sent(number=10, allocations=OTHER), sent()], [OTHER, "", ""]),
    "of a host it has left": ([PLACED, FAILED, SWAPPED, sent()], ["", "", ""]),
    "of a claim whose answer is on its way": ([PLACED, FAILED, sent(2, root=ON_HOST1)], ["", NUMA, ""]),
    "of a host it was never placed on": ([PLACED, sent(2, root="elsewhere")], ["", "", ""]),
}


@pytest.mark.parametrize("events, then", REPORTED.values(), ids=REPORTED)
def test_a_reshaped_build_has_the_new_allocations(events: list[Event], then: list[Any]) -> None:
    build, effects = after(*events)
    assert places(build) == then
    assert effects == ()
    assert all(not host.choice.shapes for host in build.hosts if host.choice.allocations in (NUMA, OTHER))


def test_a_release_after_an_unknown_swap_cleans_the_first_host() -> None:
    held = Held(generation=2, allocations=NUMA, roots=(ON_HOST1,))
    cancelled: list[Event] = [PLACED, FAILED, a_delete(PLACED), an_agent_report(FIRST, "destroyed")]
    build, effects = after(*cancelled, ReleaseAnswer("deleting", held))
    assert (build.at, build.attempt, build.generation) == (1, 2, 2)
    assert isinstance(effects[-1], ReleaseRequested) and effects[-1].generation == 2


SERVED_ROOT, LEFT_CELL, RIGHT_CELL, LEFT, RIGHT = (uid(number, "a") for number in range(5))
SERVED = source_of([
    tree(
        state(0, inventories={"VCPU": 8, "DISK_GB": 100}),
        *[state(cell, 0, {"VCPU": 8, "PCPU": 8}) for cell in (1, 2)],
        state(3, 1, {"SRIOV_NET_VF": 4}, used={"SRIOV_NET_VF": 4}, traits=("CUSTOM_LEFT",)),
        state(4, 2, {"SRIOV_NET_VF": 4}, traits=("CUSTOM_RIGHT",)),
    )
])  # fmt: skip


def a_group(suffix: str, *traits: str, forbidden: tuple[str, ...] = (), **resources: int) -> ResourceGroup:
    return ResourceGroup(suffix=suffix, resources=resources, required=traits, forbidden=forbidden)


VF = {"SRIOV_NET_VF": 1}
CASES: dict[str, tuple[FindCandidates, Allocations, dict[str, tuple[str, ...]]]] = {
    "no groups": (FindCandidates(groups=(a_group("", VCPU=1),)), {LEFT_CELL: {"VCPU": 1}}, {}),
    "all of the root": (
        FindCandidates(groups=(a_group("", DISK_GB=1), a_group("_a", VCPU=1))),
        {SERVED_ROOT: {"VCPU": 1, "DISK_GB": 1}},
        {},
    ),
    "a group of its own and the rest": (
        FindCandidates(groups=(a_group("", VCPU=1, DISK_GB=1), a_group("1", SRIOV_NET_VF=1))),
        {SERVED_ROOT: {"DISK_GB": 1}, LEFT_CELL: {"VCPU": 1}, LEFT: VF},
        {"": (LEFT_CELL, SERVED_ROOT), "1": (LEFT,)},
    ),
    "told apart by traits": (
        FindCandidates(groups=(a_group("1", "CUSTOM_RIGHT", SRIOV_NET_VF=1), a_group("2", SRIOV_NET_VF=1))),
        {LEFT: VF, RIGHT: VF},
        {"1": (RIGHT,), "2": (LEFT,)},
    ),
    "told apart by forbidden traits": (
        FindCandidates(groups=(
            a_group("1", forbidden=("CUSTOM_LEFT",), SRIOV_NET_VF=1), a_group("2", SRIOV_NET_VF=1),
        )),
        {LEFT: VF, RIGHT: VF},
        {"1": (RIGHT,), "2": (LEFT,)},
    ),
    "told apart by amounts": (
        FindCandidates(groups=(a_group("1", PCPU=1), a_group("2", PCPU=3))),
        {LEFT_CELL: {"PCPU": 3}, RIGHT_CELL: {"PCPU": 1}},
        {"1": (RIGHT_CELL,), "2": (LEFT_CELL,)},
    ),
    "two of one provider": (
        FindCandidates(groups=(a_group("1", SRIOV_NET_VF=1), a_group("2", SRIOV_NET_VF=1))),
        {LEFT: {"SRIOV_NET_VF": 2}},
        {"1": (LEFT,), "2": (LEFT,)},
    ),
    "told apart by the tree": (
        FindCandidates(
            groups=(
                a_group("_n0", "CUSTOM_RIGHT", SRIOV_NET_VF=1),
                a_group("_c0", VCPU=1),
                a_group("_c1", VCPU=1),
            ),
            same_subtree=(("_n0", "_c0"),),
        ),
        {RIGHT: VF, LEFT_CELL: {"VCPU": 1}, RIGHT_CELL: {"VCPU": 1}},
        {"_n0": (RIGHT,), "_c0": (RIGHT_CELL,), "_c1": (LEFT_CELL,)},
    ),
    "isolated": (
        FindCandidates(groups=tuple(a_group(one, VCPU=1) for one in ("1", "2", "")), isolated=("1", "2")),
        {LEFT_CELL: {"VCPU": 2}, RIGHT_CELL: {"VCPU": 1}},
        {"": (LEFT_CELL,), "1": (RIGHT_CELL,), "2": (LEFT_CELL,)},  # or the opposite: 1 and 2 are alike
    ),
    "what no group asked for": (
        FindCandidates(groups=(a_group("1", VCPU=1),)), {LEFT_CELL: {"VCPU": 1, "PCPU": 1}}, {},
    ),
    "less than a group asked for": (
        FindCandidates(groups=(a_group("1", VCPU=2),)), {LEFT_CELL: {"VCPU": 1}, RIGHT_CELL: {"VCPU": 1}}, {},
    ),
    "groups that no search permits": (
        FindCandidates(groups=(a_group("1", "CUSTOM_LEFT"),)), {LEFT_CELL: {"VCPU": 1}}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("question, held, served", CASES.values(), ids=CASES.keys())
def test_providers_of_each_group(
    question: FindCandidates, held: Allocations, served: dict[str, tuple[str, ...]]
) -> None:
    assert mappings_of(SERVED, question, SERVED_ROOT, held) == served


HELD_ROOT, CHILD, OTHER_ROOT, SHARED_POOL = (uid(number, "c") for number in (2, 3, 4, 1))


def a_reported_provider(
    id_: str, root: str = "", *, agent: str = "agent", traits: tuple[str, ...] = ()
) -> Provider:
    root = root or id_
    cell, host = ("c1", f"host of {root}") if agent else ("", "")
    return Provider(
        id=id_, name=id_, parent=None if root == id_ else root, root=root, generation=1,
        traits=traits, cell=cell, agent=agent, host=host,
    )  # fmt: skip


PLACES: dict[str, tuple[list[str], list[Provider], str | None]] = {
    "a flat host": ([HELD_ROOT], [a_reported_provider(HELD_ROOT)], HELD_ROOT),
    "children only": (
        [CHILD, OTHER_ROOT],
        [a_reported_provider(CHILD, HELD_ROOT), a_reported_provider(OTHER_ROOT, HELD_ROOT)],
        HELD_ROOT,
    ),
    "root and child": (
        [HELD_ROOT, CHILD], [a_reported_provider(HELD_ROOT), a_reported_provider(CHILD, HELD_ROOT)], HELD_ROOT
    ),
    "a pool of the operator's": (
        [SHARED_POOL, HELD_ROOT],
        [a_reported_provider(SHARED_POOL, agent=""), a_reported_provider(HELD_ROOT)],
        HELD_ROOT,
    ),
    "a pool of an agent's": (
        [SHARED_POOL, CHILD],
        [a_reported_provider(SHARED_POOL, traits=(SHARES,)), a_reported_provider(CHILD, HELD_ROOT)],
        HELD_ROOT,
    ),
    "a host that lends its own": ([HELD_ROOT], [a_reported_provider(HELD_ROOT, traits=(SHARES,))], HELD_ROOT),
    "reported by nobody": ([HELD_ROOT], [a_reported_provider(HELD_ROOT, agent="")], None),
    "unknown": ([HELD_ROOT], [], None),
    "nothing": ([], [], None),
}  # fmt: skip


@pytest.mark.parametrize(("holds", "providers", "root"), PLACES.values(), ids=PLACES)
def test_place_of(holds: list[str], providers: list[Provider], root: str | None) -> None:
    held = Held(generation=3, allocations={one: {"VCPU": 1} for one in holds})
    place = place_of(held, {provider.id: provider for provider in providers})
    assert (place and place.root) == root
    if place is not None:
        assert (place.host, place.cell, place.agent) == (f"host of {root}", "c1", "agent")

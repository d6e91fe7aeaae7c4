"""Claims of cells carry only their own instances as they were placed, and parts that a rule admits."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from berth.kit import Settings
from berth.kit.testing import open_placement
from bus.claims import Choice, ConsumerClaim, OutsideCell, Refused, Released, holder_consumer
from bus.clock import Clock
from bus.parts import TYPES, ChoiceParts, ClaimParts
from bus.requests import Flavor
from bus.sql.database import Database
from bus.vocabulary import UNSAID_ID
from features.adoption.messages import Adopts
from features.groups.messages import GroupEditRequested, MakeGroup
from features.groups.store import ServerGroups
from features.groups.tests.support.group_parts import joining
from features.preemption.messages import Preempts, Victim
from features.reservations.messages import (
    RESERVATION,
    MakeReservation,
    Reservation,
    ReservationEditRequested,
    SlotClaim,
    choice_from,
    slot_consumer,
)
from features.reservations.operations import ReservationOperations
from features.reservations.tests.support.reservation_parts import filling
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_release, a_report, on_hosts
from tests.support.placement_calls import must_take, take

BUILD, DRAWER, ELSEWHERE, MEMBER, OF_VICTIM = 1, 2, 3, 4, 5  # consumers
NAMED, OPEN, OTHERS = uid(1, "7"), uid(2, "7"), uid(3, "7")  # reservations of p1, and of the project `victim`
GROUP, OTHER_GROUP = uid(1, "9"), uid(2, "9")


def on(host: int) -> Any:
    return on_hosts(host, VCPU=2)


async def reserve(placement: Placement, id_: str, project: str, use: str, *hosts: int) -> None:
    fields: Any = {"use": use, "count": len(hosts), "flavor": Flavor(name="m", vcpus=2)}
    reservation = Reservation(id=id_, name=f"of {project} {use}", project=project, **fields)
    edit = ReservationEditRequested(edit=MakeReservation(reservation=reservation))
    await placement.of(ReservationOperations).edit(edit)
    for number, host in enumerate(hosts, 1):
        slot = replace(a_claim(0, on(host), project=project, type=RESERVATION), parts=filling(id_))
        await must_take(placement, replace(slot, consumer=slot_consumer(id_, number)))


@pytest.fixture
async def cloud(placement: Placement) -> Placement:
    """Hosts 1 to 3 of cell c1 and host 4 of c2, with instances of project p1 and of the project `victim`."""
    reports = [a_report(number, cell="c2" if number == 4 else "c1") for number in (1, 2, 3, 4)]
    assert await placement.reports.report_many(reports) == [None] * 4
    for group, project in ((GROUP, "p1"), (OTHER_GROUP, "victim")):
        made = MakeGroup(group=group, name=f"g of {project}", project=project, policy="anti-affinity")
        await placement.of(ServerGroups).edit(GroupEditRequested(edit=made))
    await reserve(placement, NAMED, "p1", "named", 1, 2)
    await reserve(placement, OPEN, "p1", "open", 2)
    await reserve(placement, OTHERS, "victim", "named", 2)
    await must_take(
        placement,
        a_claim(BUILD, on(1), project="p1"),
        a_claim(DRAWER, choice_from(slot_consumer(NAMED, 1), on(1)), project="p1"),
        a_claim(ELSEWHERE, on(4), project="p1"),
        replace(a_claim(MEMBER, on(1), project="p1"), parts=joining(GROUP)),
        a_claim(OF_VICTIM, on(1), project="victim"),
    )
    return placement


def swap(consumer: int, *choices: Any, **more: Any) -> ConsumerClaim:
    return a_claim(consumer, *(choices or (on(2),)), generation=1, project="p1", **more)


def preempting(victim: int) -> ClaimParts:
    rest = holder_consumer(uid(victim), 1)
    return ClaimParts(
        Preempts(
            victims=(Victim(build=uid(victim), generation=1, attempt=1, holder=rest),), cell="c1", priority=9
        )
    )


# what a cell's claim carries, and a text of the refusal
FORGED: dict[str, tuple[ConsumerClaim, str]] = {
    "another project": (replace(swap(BUILD), project="victim"), "it was not placed for project victim"),
    "an unknown project": (replace(swap(BUILD), project="none"), "it was not placed for project none"),
    "another user": (replace(swap(BUILD), user="mallory"), "it was not placed for user mallory"),
    "another type": (swap(BUILD, type="RESERVATION"), "it was not placed for type RESERVATION"),
    "an unknown type": (swap(BUILD, type="OTHER"), "it was not placed for type OTHER"),
    "an instance of another project": (swap(OF_VICTIM), "it was not placed for project p1"),
    "an instance of another cell": (swap(ELSEWHERE), "it was not placed in cell c1"),
    "a slot of a reservation": (
        replace(swap(BUILD, type=None), consumer=slot_consumer(OTHERS, 1), project="victim"),
        "it is of type RESERVATION, and a cell claims for instances",
    ),
    "its rest to another instance of the cell": (
        swap(BUILD, keep=OF_VICTIM), f"it is no clean-up of {uid(BUILD)}",
    ),
    "becomes a slot of its project": (
        swap(BUILD, parts=ClaimParts(SlotClaim(reservation=NAMED))), "part of reservations",
    ),
    "becomes a slot of another project": (
        swap(BUILD, parts=ClaimParts(SlotClaim(reservation=OTHERS))), "part of reservations",
    ),
    "becomes a slot of no reservation": (
        swap(BUILD, parts=ClaimParts(SlotClaim(reservation=uid(9, "7")))), "part of reservations",
    ),
    "joins a group of its project": (swap(BUILD, parts=joining(GROUP)), "part of groups"),
    "joins a group of another project": (swap(BUILD, parts=joining(OTHER_GROUP)), "part of groups"),
    "joins no group": (swap(BUILD, parts=joining(uid(8, "9"))), "part of groups"),
    "preempts in its cell": (swap(BUILD, parts=preempting(OF_VICTIM)), "part of preemption"),
    "preempts in another cell": (swap(BUILD, parts=preempting(ELSEWHERE)), "part of preemption"),
    "preempts an unknown instance": (swap(BUILD, parts=preempting(99)), "part of preemption"),
    "adopts": (swap(BUILD, parts=ClaimParts(Adopts())), "part of adoption"),
    "draws from a reservation of another project": (
        swap(BUILD, choice_from(slot_consumer(OTHERS, 1), on(2))), "part of reservations",
    ),
    "draws from a reservation that its request did not name": (
        swap(BUILD, choice_from(slot_consumer(NAMED, 2), on(2))), "part of reservations",
    ),
    "draws from no slot": (swap(BUILD, choice_from(uid(7), on(2))), "part of reservations"),
}  # fmt: skip


@pytest.mark.parametrize(("forged", "why"), FORGED.values(), ids=FORGED)
async def test_a_cell_may_not_claim(cloud: Placement, forged: ConsumerClaim, why: str) -> None:
    before = await states(cloud)
    [result] = await take(cloud, forged, cell="c1")
    assert isinstance(result, Refused), result
    [refusal] = result.refusals
    assert isinstance(refusal, OutsideCell) and why in refusal.why, refusal
    assert await states(cloud) == before


async def states(placement: Placement) -> Any:
    """Return all consumers, slots and retirements."""
    async with placement.database.read() as tx:
        return [
            sorted(map(str, await tx.execute(text(f"SELECT {columns}"))))
            for columns in (
                "c.uuid, c.generation, c.project_id, c.user_id, c.consumer_type_id FROM consumers c",
                "c.uuid, c.group_id, c.draws_on FROM consumers c",
                "s.uuid, s.reservation, s.project FROM reservation_slots s",
                "r.uuid, r.why FROM retired_consumers r",
            )
        ]


async def test_a_cell_does_not_release_a_slot_of_a_reservation(cloud: Placement) -> None:
    release = replace(a_release(0, "any"), consumer=slot_consumer(OTHERS, 1))
    [answer] = await cloud.claims.release_many([release], cell="c1")
    assert isinstance(answer.result, OutsideCell) and "of type RESERVATION" in answer.result.why


LEGITIMATE: dict[str, tuple[ConsumerClaim, ...]] = {
    "an alternate": (swap(BUILD),),
    "an alternate, with what the first attempt left behind": (
        replace(swap(BUILD), keep=holder_consumer(uid(BUILD), 1)),
    ),
    "an alternate of a member of a group": (swap(MEMBER),),
    "the next slot of the reservation from which it drew": (
        swap(DRAWER, choice_from(slot_consumer(NAMED, 2), on(2))),
    ),
    "the next slot, with what the first attempt left behind": (
        replace(
            swap(DRAWER, choice_from(slot_consumer(NAMED, 2), on(2))), keep=holder_consumer(uid(DRAWER), 1)
        ),
    ),
    "a slot for every build of its project": (swap(BUILD, choice_from(slot_consumer(OPEN, 1), on(2))),),
    "an alternate after one that draws from a slot that was deleted": (
        swap(DRAWER, choice_from(slot_consumer(NAMED, 9), on(2)), Choice(on(3))),
    ),
    "the former host, whose allocations it takes over": (
        replace(swap(BUILD), keep=holder_consumer(uid(BUILD), 1)),
        replace(swap(BUILD, on(1)), generation=2, take_over=holder_consumer(uid(BUILD), 1)),
    ),
}


@pytest.mark.parametrize("claims", LEGITIMATE.values(), ids=LEGITIMATE)
async def test_a_cell_claims(cloud: Placement, claims: Sequence[ConsumerClaim]) -> None:
    for each in claims:
        await must_take(cloud, each, cell="c1")


async def test_a_cell_adopts_an_instance_of_unknown_owner(cloud: Placement) -> None:
    await must_take(cloud, replace(a_claim(20, on(3)), project=UNSAID_ID, type=None))
    await must_take(cloud, a_claim(20, on(3), generation=1, project="p1"), cell="c1")
    [again] = await take(cloud, a_claim(20, on(3), generation=2, project="victim"), cell="c1")
    assert isinstance(again, Refused)


async def test_a_cell_releases_its_instances_and_what_they_left_behind(cloud: Placement) -> None:
    holder = holder_consumer(uid(BUILD), 1)
    releases = [
        replace(a_release(BUILD, 1, retire="deleted"), keep=holder),
        replace(a_release(0, "any"), consumer=holder),
    ]
    for each in releases:
        [answer] = await cloud.claims.release_many([each], cell="c1")
        assert isinstance(answer.result, Released), answer


def test_each_part_of_claims_and_choices_is_tried() -> None:
    tried = {
        type(part)
        for claim, _ in FORGED.values()
        for parts in (claim.parts, *(choice.parts or () for choice in claim.choices))
        for part in parts
    }
    open_placement(Settings(), Database("sqlite+aiosqlite://"), Clock())  # adds all types
    assert tried == {*TYPES.of(ClaimParts).values(), *TYPES.of(ChoiceParts).values()}

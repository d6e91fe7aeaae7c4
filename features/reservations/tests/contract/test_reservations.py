"""Reservations on both databases: drawn from, returned to, expired and ended in the claims' transactions."""

from typing import Any

import pytest
from msgspec.structs import replace

from berth.kit.testing import allocations, placement_breaches
from bus.claims import Claimed, ClaimResult, ConsumerClaim, Full, Held, Refused, Released, RuleRefused
from bus.errors import Unavailable
from bus.requests import Flavor
from bus.vocabulary import UNSAID_ID, Missing
from features.reservations import store as stored
from features.reservations.messages import (
    RESERVATION,
    EndReservation,
    ExtendReservation,
    FindReservations,
    ForgetSlots,
    MakeReservation,
    Reservation,
    ReservationEdit,
    ReservationEdited,
    ReservationEditRequested,
    ReservationOver,
    ReservationResult,
    choice_from,
    slot_consumer,
)
from features.reservations.operations import ReservationOperations
from features.reservations.tests.support.reservation_parts import filling
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_release, a_report, on_hosts
from tests.support.placement_calls import must_take, take

R1 = uid(1, "7")
S1, S2 = slot_consumer(R1, 1), slot_consumer(R1, 2)
HOST = uid(1, "a")


@pytest.fixture(autouse=True)
async def hosts(placement: Placement) -> None:
    await placement.reports.report_many([a_report(number) for number in (1, 2)])


def a_reservation(**fields: Any) -> Reservation:
    given: dict[str, Any] = {"id": R1, "name": "season", "project": "p1"}
    return Reservation(**(given | {"flavor": Flavor(name="m", vcpus=4)} | fields))


async def edit(placement: Placement, wanted: ReservationEdit) -> ReservationResult:
    return (await placement.of(ReservationOperations).edit(ReservationEditRequested(edit=wanted))).result


async def make(placement: Placement, **fields: Any) -> None:
    made = await edit(placement, MakeReservation(reservation=a_reservation(**fields)))
    assert isinstance(made, ReservationEdited)


def a_slot(slot: str = S1, host: int = 1, **resources: int) -> ConsumerClaim:
    claim = a_claim(0, on_hosts(host, **(resources or {"VCPU": 4})), type=RESERVATION)
    return replace(claim, consumer=slot, parts=filling(R1))


def draws(consumer: int, slot: str = S1, host: int = 1, vcpus: int = 4, **fields: Any) -> ConsumerClaim:
    return a_claim(consumer, choice_from(slot, on_hosts(host, VCPU=vcpus)), **fields)


async def reserve(placement: Placement, **fields: Any) -> None:
    """Reserve four of the eight processors of host 1, and give the other four to consumer 9."""
    await make(placement, **fields)
    slot = replace(a_slot(), project=fields.get("project") or UNSAID_ID)
    for claim in (slot, a_claim(9, on_hosts(1, VCPU=4), project="p9")):
        await must_take(placement, claim)


async def slots(placement: Placement) -> dict[str, tuple[dict[str, dict[str, int]], tuple[str, ...]]]:
    found = await placement.of(ReservationOperations).find(FindReservations(ids=(R1,)))
    return {slot.consumer: (slot.held, slot.drawn_by) for slot in found.slots.get(R1, ())}


async def release(placement: Placement, consumer: int, **fields: Any) -> None:
    [answer] = await placement.claims.release_many([a_release(consumer, "any", **fields)])
    assert isinstance(answer.result, Released)


def why(result: ClaimResult) -> str:
    assert isinstance(result, Refused)
    [refusal] = result.refusals
    assert isinstance(refusal, RuleRefused) and refusal.rule == "reservations", refusal
    return refusal.why


async def is_sound(placement: Placement) -> bool:
    return not await placement_breaches(placement.database)


async def held(placement: Placement) -> dict[str, dict[str, dict[str, int]]]:
    return {
        consumer: allocations
        for consumer, (_, allocations, _) in (await allocations(placement.database)).items()
    }


# Drawing


async def test_an_instance_takes_the_slot_of_a_full_host(placement: Placement) -> None:
    await reserve(placement)
    [full] = await take(placement, a_claim(2, on_hosts(1, VCPU=4)))
    assert isinstance(full, Refused) and isinstance(full.refusals[0], Full)
    [drawn] = await take(placement, draws(2))
    assert drawn == Claimed(choice=0, generation=1, number=drawn.number)  # type: ignore[union-attr]
    assert await slots(placement) == {S1: ({}, (uid(2),))}
    [its] = (
        await placement.of(ReservationOperations).find(FindReservations(drawn_by=uid(2), ids=(uid(2),)))
    ).reservations
    assert its.id == R1
    assert not (
        await placement.of(ReservationOperations).find(FindReservations(drawn_by=uid(9)))
    ).reservations
    assert await held(placement) == {uid(2): on_hosts(1, VCPU=4), uid(9): on_hosts(1, VCPU=4)}
    assert await is_sound(placement)


async def test_of_two_draws_of_one_slot_the_second_is_refused_with_the_reason(placement: Placement) -> None:
    await reserve(placement)
    await take(placement, draws(2))
    [second] = await take(placement, draws(3))
    assert why(second) == "reservation 'season': another instance drew from this slot"


async def test_small_instances_share_a_slot_until_it_is_empty(placement: Placement) -> None:
    await reserve(placement)
    results = [await take(placement, draws(consumer, vcpus=2)) for consumer in (2, 3, 4)]
    assert [isinstance(result, Claimed) for [result] in results] == [True, True, False]
    assert await slots(placement) == {S1: ({}, (uid(2), uid(3)))}
    assert await is_sound(placement)


async def test_a_repeated_draw_changes_nothing(placement: Placement) -> None:
    await reserve(placement)
    await take(placement, draws(2, vcpus=2))
    [again] = await take(placement, draws(2, vcpus=2))
    assert isinstance(again, Held)
    assert await slots(placement) == {S1: ({HOST: {"VCPU": 2}}, (uid(2),))}


async def test_a_request_that_fails_leaves_the_slot_as_it_was(placement: Placement) -> None:
    await reserve(placement)
    results = await take(placement, draws(2), draws(3))
    assert not any(isinstance(result, Claimed) for result in results)
    assert await slots(placement) == {S1: ({HOST: {"VCPU": 4}}, ())}
    await must_take(placement, draws(2))


@pytest.mark.parametrize(
    ("fields", "claim", "reason"),
    [
        ({}, {"project": "p2"}, "reservation 'season' belongs to another project"),
        ({"begins": 4e9}, {}, "reservation 'season' is held"),
        ({"begins": 4e9, "holds_from": 4e9}, {}, "reservation 'season' is planned"),
        ({"use": "failover", "project": ""}, {}, "reservation 'season' is only for failover"),
        ({}, {"slot": uid(5)}, "there is no such reservation any more"),
    ],
)
async def test_a_draw_is_refused(
    placement: Placement, fields: dict[str, Any], claim: dict[str, Any], reason: str
) -> None:
    await reserve(placement, **fields)
    [result] = await take(placement, draws(2, **claim))
    assert why(result) == reason


async def test_a_move_draws_from_a_failover_reservation_of_another_project(placement: Placement) -> None:
    await reserve(placement, use="failover", project="")
    await take(placement, a_claim(2, on_hosts(2, VCPU=4)))
    await must_take(placement, draws(2, generation=1, keep=30, begins=31))
    assert await slots(placement) == {S1: ({}, (uid(2),))}


async def test_a_cell_draws_on_its_own_hosts_only(placement: Placement) -> None:
    await reserve(placement)
    await must_take(placement, a_claim(2, on_hosts(2, VCPU=4)))
    [drawn] = await take(placement, draws(2, generation=1, keep=30), cell="c2")
    assert not isinstance(drawn, Claimed)


# Returning


async def test_a_deleted_instance_returns_its_capacity_to_the_slot(placement: Placement) -> None:
    await reserve(placement)
    await take(placement, draws(2))
    await release(placement, 2)
    assert await slots(placement) == {S1: ({HOST: {"VCPU": 4}}, ())}
    [other] = await take(placement, a_claim(3, on_hosts(1, VCPU=1)))
    assert isinstance(other, Refused)
    await must_take(placement, draws(3))
    assert await is_sound(placement)


async def test_capacity_of_a_reservation_without_return_is_free_again(placement: Placement) -> None:
    await reserve(placement, returns=False)
    await take(placement, draws(2))
    await release(placement, 2)
    assert await slots(placement) == {S1: ({}, ())}
    await must_take(placement, a_claim(3, on_hosts(1, VCPU=4)))


async def test_a_guest_that_may_still_exist_returns_its_capacity_when_it_is_destroyed(
    placement: Placement,
) -> None:
    await reserve(placement)
    await take(placement, draws(2))
    await must_take(placement, a_claim(2, on_hosts(2, VCPU=4), generation=1, keep=30))
    assert await slots(placement) == {S1: ({}, (uid(30),))}
    await release(placement, 2)
    assert await slots(placement) == {S1: ({}, (uid(30),))}
    await release(placement, 30)
    assert await slots(placement) == {S1: ({HOST: {"VCPU": 4}}, ())}


async def test_a_reverted_move_draws_from_the_slot_as_before(placement: Placement) -> None:
    await reserve(placement)
    await take(placement, draws(2))
    await take(placement, a_claim(2, on_hosts(2, VCPU=4), generation=1, keep=30, begins=31))
    await must_take(placement, a_claim(2, on_hosts(1, VCPU=4), generation=2, take_over=30))
    assert await slots(placement) == {S1: ({}, (uid(2),))}
    await release(placement, 2)
    assert await slots(placement) == {S1: ({HOST: {"VCPU": 4}}, ())}


# Slots


async def test_a_slot_is_claimed_once_even_after_it_was_drawn_completely(placement: Placement) -> None:
    await reserve(placement)
    [held] = await take(placement, a_slot())
    assert isinstance(held, Held)
    await take(placement, draws(2))
    [again] = await take(placement, a_slot(host=2))
    assert why(again) == "reservation 'season': the slot was claimed before"


async def test_a_slot_of_an_ended_or_unknown_reservation_is_refused(placement: Placement) -> None:
    [unknown] = await take(placement, a_slot())
    assert why(unknown) == "there is no such reservation any more"
    await make(placement)
    await edit(placement, EndReservation(reservation=R1))
    [ended] = await take(placement, a_slot())
    assert why(ended) == "reservation 'season' is ended"


async def test_a_slot_whose_record_cannot_be_deleted_keeps_its_capacity(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    await reserve(placement)

    async def away(*_: object) -> None:
        raise Unavailable("the database is away")

    with monkeypatch.context() as broken, pytest.raises(Unavailable):
        broken.setattr(stored.FORGET_EMPTY, "of", lambda *_: away)
        await edit(placement, ForgetSlots(reservation=R1, slots=(S1,)))
    assert [held for held, _ in (await slots(placement)).values()] != [{}]
    await edit(placement, ForgetSlots(reservation=R1, slots=(S1,)))
    assert await slots(placement) == {}
    assert await is_sound(placement)


# Ends


async def test_the_end_of_the_window_releases_what_is_not_drawn(placement: Placement, turned: Any) -> None:
    now = placement.clock.now()
    await reserve(placement, ends=now + 100)
    await take(placement, draws(2, vcpus=1))
    await placement.of(ReservationOperations).expire()
    assert await slots(placement) == {S1: ({HOST: {"VCPU": 3}}, (uid(2),))}
    turned.now += 101
    [late] = await take(placement, draws(3, vcpus=1))
    assert why(late) == "reservation 'season' is ended"
    for _ in range(2):
        await placement.of(ReservationOperations).expire()
        assert await slots(placement) == {S1: ({}, (uid(2),))}
    await release(placement, 2)
    assert await slots(placement) == {S1: ({}, ())}
    assert await held(placement) == {uid(9): on_hosts(1, VCPU=4)}
    result = await edit(placement, ExtendReservation(reservation=R1, ends=now + 1000))
    assert result == ReservationOver(reservation="season")


async def test_an_end_that_a_crash_interrupted_is_completed(placement: Placement) -> None:
    await reserve(placement)
    await placement.of(ReservationOperations)._mark(R1)
    assert await slots(placement) == {S1: ({HOST: {"VCPU": 4}}, ())}
    await placement.of(ReservationOperations).expire()
    assert await slots(placement) == {S1: ({}, ())}


async def test_a_forgotten_reservation_leaves_its_instances(placement: Placement) -> None:
    await reserve(placement)
    await take(placement, draws(2, vcpus=1))
    ended = await edit(placement, EndReservation(reservation=R1, forget=True))
    assert ended == ReservationEdited(reservation=a_reservation(ended=True), changed=True, released=1)
    assert (await placement.of(ReservationOperations).find(FindReservations())).reservations == ()
    missing = await edit(placement, EndReservation(reservation=R1))
    assert missing == Missing(what="reservation", names=(R1,))
    await release(placement, 2)
    assert await held(placement) == {uid(9): on_hosts(1, VCPU=4)}

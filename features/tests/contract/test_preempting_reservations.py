"""Claims that preempt, with reserved capacity."""

from msgspec.structs import replace

from bus.claims import ClaimRequested, Refused
from bus.parts import ClaimParts
from bus.requests import Flavor
from bus.resources import FindAllocations
from features.preemption.tests.support.preempting_claims import HIGH, LOW, a_victim, taking
from features.preemption.tests.support.preempting_claims import full_host as full_host
from features.reservations.messages import (
    RESERVATION,
    MakeReservation,
    Reservation,
    ReservationEditRequested,
    choice_from,
    slot_consumer,
)
from features.reservations.operations import ReservationOperations
from features.reservations.tests.support.reservation_parts import filling
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, on_hosts


async def test_an_instance_that_draws_from_a_reservation_is_protected(placement: Placement) -> None:
    season = Reservation(id=uid(1, "7"), name="season", project="p1", flavor=Flavor(name="m", vcpus=8))
    await placement.of(ReservationOperations).edit(
        ReservationEditRequested(edit=MakeReservation(reservation=season))
    )
    slot = slot_consumer(season.id, 1)
    reserved = a_claim(0, on_hosts(2, VCPU=8), type=RESERVATION, parts=filling(season.id))
    drawn = a_claim(6, choice_from(slot, on_hosts(2, VCPU=8)))
    taking_it = a_claim(HIGH, on_hosts(2, VCPU=4), parts=ClaimParts(taking(a_victim(6))))
    claims = replace(reserved, consumer=slot), drawn, taking_it
    answers = [(await placement.claims.claim_many([ClaimRequested(claims=(each,))]))[0] for each in claims]
    refused = answers[-1].results[0]
    assert isinstance(refused, Refused)
    assert str(refused.refusals[0]) == f"{uid(6)} cannot be preempted: it draws from a reservation"
    found = await placement.lookups.allocations(FindAllocations(consumers=(uid(6), uid(LOW))))
    assert {each.id: each.protected for each in found.consumers} == {uid(6): True, uid(LOW): False}

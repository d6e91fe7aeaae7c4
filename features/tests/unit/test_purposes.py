"""Purposes of orders: what an answer means for a build or a slot."""

import pytest
from msgspec import structs

from bus.claims import ConsumerClaim, Held, Retired
from bus.messages import BuildUnplaceable
from features.nova.selecting import SelectPurpose
from features.reservations.filling import SlotPurpose
from features.reservations.messages import RESERVATION, reserves
from scheduler_worker.extension import Order, Purpose, claims_of, events
from scheduler_worker.testing import BUILD, PATIENCE, step
from tests.support.ids import uid
from tests.support.ranking_builders import a_hall
from tests.support.scheduler_builders import a_candidate, a_request

EXCLUDED, RESERVATION_ID = a_candidate(1), uid(1, "d")
SLOT, SELECT = SlotPurpose(RESERVATION_ID), SelectPurpose()
RELEASED = Held(generation=3, allocations={})
ENDED = Retired(why="no host", unplaceable=True)


def chosen(order: Order) -> Order:
    """Return an order with the host that it gets: never the excluded one."""
    order, _ = step(order, events.Started(), PATIENCE)
    hall = a_hall(EXCLUDED, a_candidate(2))
    [hosts] = hall.choosing().choose([order])
    return step(order, hosts, PATIENCE)[0]


def answered(purpose: Purpose, result: Held | Retired) -> tuple[Order, events.Effect]:
    """Return an order after placement has answered its claim, and what it needs next."""
    request = a_request(1, alternates=0, ignore_hosts=(EXCLUDED.host,))
    order = a_hall(EXCLUDED, a_candidate(2)).order(request)
    order = chosen(structs.replace(order, purpose=purpose))
    order, (*_, last) = step(order, events.ClaimAnswers((result,)), PATIENCE)
    return order, last


@pytest.mark.parametrize("purpose", [BUILD, SLOT, SELECT])
def test_an_instance_that_ended_is_reported_again(purpose: Purpose) -> None:
    _, last = answered(purpose, ENDED)
    assert isinstance(last, events.Publish)
    [message] = last.messages
    assert isinstance(message, BuildUnplaceable) and message.reason == "no host"


def claim_after(purpose: Purpose, result: Held) -> ConsumerClaim:
    order, _ = answered(purpose, result)
    [claim] = claims_of(chosen(order), {}, ())
    return claim


def test_a_forgotten_slot_is_claimed_again_with_its_generation() -> None:
    claim = claim_after(SLOT, RELEASED)
    assert (claim.generation, claim.type, reserves(claim)) == (3, RESERVATION, RESERVATION_ID)

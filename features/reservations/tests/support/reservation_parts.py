"""Parts of messages that name a reservation or a slot, and claims with them."""

from bus.claims import Choice, ConsumerClaim
from bus.parts import ClaimParts, RequestParts
from features.reservations.messages import RESERVATION, ReservationPart, SlotClaim, choice_from, slot_consumer
from placement_worker.testing import Placement
from tests.support.placement_builders import a_claim, an_order, on_hosts


def naming(reservation: str) -> RequestParts:
    """Return the parts of a request that is limited to a reservation."""
    return RequestParts(ReservationPart(reservation=reservation))


def filling(reservation: str) -> ClaimParts:
    """Return the parts of the claim of a slot."""
    return ClaimParts(SlotClaim(reservation=reservation))


async def draw_from(placement: Placement, reservation: str) -> None:
    """Let instance 2 draw one of the four processors of a reservation's slot on host 1."""
    slot = slot_consumer(reservation, 1)
    claim = ConsumerClaim(
        consumer=slot, generation=None, choices=(Choice(on_hosts(1, VCPU=4)),), project="p1",
        type=RESERVATION, parts=filling(reservation),
    )  # fmt: skip
    await placement.claims.claim_many([an_order(claim)])
    await placement.claims.claim_many([an_order(a_claim(2, choice_from(slot, on_hosts(1, VCPU=1))))])

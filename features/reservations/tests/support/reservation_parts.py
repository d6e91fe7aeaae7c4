"""Parts of messages that name a reservation or a slot."""

from bus.parts import ClaimParts, RequestParts
from features.reservations.messages import ReservationPart, SlotClaim


def naming(reservation: str) -> RequestParts:
    """Return the parts of a request that is limited to a reservation."""
    return RequestParts(ReservationPart(reservation=reservation))


def filling(reservation: str) -> ClaimParts:
    """Return the parts of the claim of a slot."""
    return ClaimParts(SlotClaim(reservation=reservation))

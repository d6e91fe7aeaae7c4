"""Parts of messages about reservations."""

from collections.abc import Mapping
from typing import ClassVar, Self

from bus.claims import Choice, ConsumerClaim
from bus.parts import ChoiceParts, ClaimParts, Part, RequestParts
from bus.vocabulary import Allocations, Id, Shapes


class ReservationPart(Part, frozen=True, kw_only=True):
    """The reservation of the project to which a request is limited: it uses no other capacity."""

    flat: ClassVar = {"reservation": "hints"}
    uses_held_capacity: ClassVar = True

    reservation: Id | None = None

    def recorded(self) -> Self:
        return self


class SlotClaim(Part, frozen=True, kw_only=True):
    """The reservation of which a consumer becomes a slot."""

    reservation: Id


class DrawPart(Part, frozen=True, kw_only=True):
    """The consumer that is a reservation's slot: all allocations of the choice are taken from this slot, in
    the transaction of the claim.
    """

    slot: Id


def reservation_of(parts: RequestParts) -> Id | None:
    """Return the reservation that a request names."""
    part = parts.get(ReservationPart)
    return None if part is None else part.reservation


def reserves(claim: ConsumerClaim) -> Id | None:
    """Return the reservation of which a claim's consumer becomes a slot."""
    part = claim.parts.get(SlotClaim)
    return None if part is None else part.reservation


def slot_drawn(choice: Choice) -> Id | None:
    """Return the slot from which a choice draws."""
    part = None if choice.parts is None else choice.parts.get(DrawPart)
    return None if part is None else part.slot


def choice_from(slot: Id | None, allocations: Allocations, shapes: Shapes | None = None) -> Choice:
    """Return a choice that draws from a slot, if one is given."""
    parts = None if slot is None else ChoiceParts(DrawPart(slot=slot))
    return Choice(allocations, shapes or {}, parts)


PARTS: Mapping[type, type[Part]] = {
    RequestParts: ReservationPart,
    ClaimParts: SlotClaim,
    ChoiceParts: DrawPart,
}

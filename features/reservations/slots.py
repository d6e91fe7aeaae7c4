"""Decides whether a claim may draw from a reservation, and how much of released allocations returns to it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from bus.claims import Choice, ConsumerClaim, RuleRefused
from bus.vocabulary import Allocations, common, covers, without
from features.reservations.messages import FAILOVER, RESERVATION, Reservation, reserves


def reservation_refusal(why: str) -> RuleRefused:
    """Return the refusal of a claim whose consumer may not draw from a slot, or may not become a slot."""
    return RuleRefused(rule="reservations", code="reservation", why=why)


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """The record of a slot of a reservation: its consumer, reservation and project, and the allocations that
    it had when first claimed.
    """

    consumer: str
    reservation: str
    project: str
    allocations: Allocations

    def claim(self) -> ConsumerClaim:
        """Return a claim that describes the slot's consumer, to store the consumer again after a deletion."""
        return ConsumerClaim(
            consumer=self.consumer,
            generation=None,
            choices=(Choice({}),),
            project=self.project,
            type=RESERVATION,
        )


@dataclass(slots=True)
class ReservationWorld:
    """The reservations and slots that are needed to decide claims and releases: slots to draw from, to claim,
    or to return allocations to.
    """

    now: float = 0.0
    reservations: Mapping[str, Reservation] = field(default_factory=dict)  # reservations with locked rows
    slots: Mapping[str, SlotRecord] = field(default_factory=dict)
    read: Collection[str] = ()  # all looked-up slots, including slots that do not exist
    unread: set[str] = field(default_factory=set)  # slots that must be read before a decision is possible
    made: dict[str, SlotRecord] = field(default_factory=dict)  # slots that claims have created
    # slots from which the consumers of a cell's claims drew before → their reservations
    drawn_from: Mapping[str, str] = field(default_factory=dict)

    def admits_alternate(self, slot: str, drawn: str | None, claim: ConsumerClaim) -> bool:
        """Return whether an alternate of the claim may draw from a slot: the scheduler chooses alternates in
        the reservation that the request names, or in one for every build of the project. `drawn`: the slot
        from which the consumer drew before.
        """
        record = self.slots.get(slot)
        if record is None:
            return False
        if drawn is not None and self.drawn_from.get(drawn) == record.reservation:
            return True
        reservation = self.reservations.get(record.reservation)
        return reservation is not None and reservation.use == "open" and reservation.project == claim.project

    def bars_draw(self, slot: str, held: Allocations, claim: ConsumerClaim, wanted: Allocations) -> str:
        """Return why a claim may not draw `wanted` from a slot that holds `held`; "" if it may."""
        record = self.slots.get(slot)
        reservation = self.reservations.get(record.reservation) if record is not None else None
        if reservation is None:
            return "there is no such reservation any more"
        state = reservation.state(self.now)
        if state != "active":
            return f"reservation {reservation.name!r} is {state}"
        if reservation.use == FAILOVER:
            if not claim.begins:
                return f"reservation {reservation.name!r} is only for failover"
        elif not reservation.serves(claim.project):
            return f"reservation {reservation.name!r} belongs to another project"
        if not covers(held, wanted):
            return f"reservation {reservation.name!r}: another instance drew from this slot"
        return ""

    def bars_slot(self, claim: ConsumerClaim) -> str:
        """Return why a claim may not become a slot of the reservation that it names; "" if it may."""
        reservation = self.reservations.get(reserves(claim) or "")
        if reservation is None:
            return "there is no such reservation any more"
        if reservation.ended or 0 < reservation.ends <= self.now:
            return f"reservation {reservation.name!r} is ended"
        if claim.consumer in self.slots:
            return f"reservation {reservation.name!r}: the slot was claimed before"
        return ""

    def returned(self, slot: str, held: Allocations, released: Allocations) -> Allocations:
        """Return the part of the released allocations that a slot which holds `held` gets back: never more
        than it reserved at first, and nothing if the reservation has ended.
        """
        record = self.slots.get(slot)
        reservation = self.reservations.get(record.reservation) if record is not None else None
        if record is None or reservation is None or not reservation.returns:
            return {}
        if reservation.state(self.now) == "ended":
            return {}
        return common(without(record.allocations, held), released)

    def make(self, claim: ConsumerClaim, allocations: Allocations) -> None:
        self.made[claim.consumer] = SlotRecord(
            claim.consumer, reserves(claim) or "", claim.project, allocations
        )

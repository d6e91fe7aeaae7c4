"""Decides which slots of a reservation must be claimed, and which are not needed any more."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import count, islice

from bus.vocabulary import Id
from features.reservations.messages import Reservation, ReservedSlot, slot_consumer


@dataclass(frozen=True, slots=True)
class HeldSlots:
    """The slots that a reservation has. `closed` are the roots of hosts that accept no builds.

    An undrawn slot on a closed host is of no use to the owner of the reservation, so it does not count.
    """

    reservation: Reservation
    slots: Sequence[ReservedSlot]
    closed: Set[str]

    @property
    def useful(self) -> int:
        """Return how many slots builds can draw from, or have drawn from."""
        return sum(not slot.is_undrawn or self.closed.isdisjoint(slot.roots) for slot in self.slots)

    def to_claim(self) -> list[Id]:
        """Return the ids of the slots to claim, so that the reservation has all its slots on open hosts."""
        known = {slot.consumer for slot in self.slots}
        ids = (slot_consumer(self.reservation.id, number) for number in count(1))
        lacking = max(self.reservation.count - self.useful, 0)
        return list(islice((id_ for id_ in ids if id_ not in known), lacking))

    def to_forget(self, claimed: int) -> list[Id]:
        """Return the undrawn slots that are surplus after `claimed` new slots were claimed. Slots on closed
        hosts come first.
        """
        surplus = len(self.slots) + claimed - self.reservation.count
        undrawn = [slot for slot in self.slots if slot.is_undrawn]
        undrawn.sort(key=lambda slot: self.closed.isdisjoint(slot.roots))
        return [slot.consumer for slot in undrawn[: max(surplus, 0)]]

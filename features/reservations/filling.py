"""Claims the slots of reservations, on hosts chosen as for builds.

The ids of the slots are derived from the reservation. So placement answers a repeated claim, or the claim of
another scheduler, with the slot's allocations. A slot on a host that is closed to builds does not count:
another slot is claimed elsewhere, and then this slot is forgotten.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar

from msgspec import structs
from prometheus_client import Gauge

from bus.claims import Choice, ConsumerClaim, Held, Retired
from bus.host_health import condition
from bus.messages import BuildPlaced, BuildRequested, BuildUnplaceable
from bus.vocabulary import UNSAID_ID, Id, portions
from features.reservations.core.reserved_slots import HeldSlots
from features.reservations.drawn_reservations import DrawnReservations
from features.reservations.messages import (
    EDIT_RESERVATION,
    RESERVATION,
    RESERVATIONS,
    FillReservation,
    FindReservations,
    ForgetSlots,
    Reservation,
    ReservationEditRequested,
    ReservationFilled,
    ReservationsFound,
    SlotClaim,
    every_reservation,
)
from scheduler_worker.extension import ComeAgain, Order, Placing, Purpose, events, on_closed, only_on

REFRESH_SECONDS = 5.0
SLOTS_AT_ONCE = 100  # slots that one order claims
RESERVATIONS_AT_ONCE = 100  # reservations whose slots one query reads
SHORT = Gauge("berth_reservations_short", "reservations that should hold capacity and lack slots")
SLOTS = Gauge(
    "berth_reservations_slots",
    "slots of reservations: drawn by instances, undrawn, or missing although their capacity is to be held",
    ["state"],
)


@dataclass(frozen=True)
class SlotPurpose(Purpose):
    """The purpose of orders that claim slots of a reservation: later orders may claim the same slots."""

    name: ClassVar[str] = "slot"
    retires: ClassVar[bool] = False
    boots: ClassVar[bool] = False

    reservation: Id
    # consumer → its generation, for slots that were forgotten before and are claimed again
    generations: Mapping[Id, int] = field(default_factory=dict)

    def claim(self, order: Order, instance: Id, choices: tuple[Choice, ...]) -> ConsumerClaim:
        claim, generation = super().claim(order, instance, choices), self.generations.get(instance)
        parts = claim.parts.having(SlotClaim(reservation=self.reservation))
        return structs.replace(claim, generation=generation, type=RESERVATION, parts=parts)

    def claim_answered(
        self, order: Order, instance: Id, result: Held | Retired, patience: float
    ) -> Order | ComeAgain:
        """Return the order with a forgotten slot to be claimed again."""
        if isinstance(result, Held) and not result.allocations:
            purpose = replace(self, generations={**self.generations, instance: result.generation})
            return structs.replace(order, purpose=purpose, instances=(*order.instances, instance))
        return super().claim_answered(order, instance, result, patience)


class ReservationFiller:
    """Claims the slots that reservations lack, from the time when their capacity is to be held."""

    def __init__(self, scheduler: Placing, drawn: DrawnReservations) -> None:
        self._scheduler = scheduler
        self._drawn = drawn
        self._find = scheduler.placement.ask(RESERVATIONS)
        self._edit = scheduler.placement.ask(EDIT_RESERVATION)

    async def refresh(self) -> None:
        """Read the reservations again, claim missing slots, and set the metrics of slots."""
        found = await every_reservation(self._find, FindReservations(slots=False))
        self._drawn.learn(found.reservations)
        now, short, states = self._scheduler.clock.now(), 0, Counter[str]()
        unfilled = [
            each
            for each in found.reservations
            if not each.levels  # with levels, placement's headroom controller claims the slots
            if each.state(now) in ("held", "active")
        ]
        for some in portions(unfilled, RESERVATIONS_AT_ONCE):
            found = await every_reservation(
                self._find, FindReservations(ids=tuple([each.id for each in some]))
            )
            closed = self._closed(found)
            for reservation in some:
                slots = found.slots.get(reservation.id, ())
                filled = await self._fill(HeldSlots(reservation, slots, closed))
                short += filled.missing > 0
                drawn = sum(bool(slot.drawn_by) for slot in slots)
                states.update(drawn=drawn, undrawn=max(filled.placed - drawn, 0), missing=filled.missing)
        SHORT.set(short)
        for state in ("drawn", "undrawn", "missing"):
            SLOTS.labels(state).set(states[state])

    async def fill(self, order: FillReservation) -> ReservationFilled:
        """Claim the slots that a reservation lacks, and return how many it has."""
        found = await self._find(FindReservations(ids=(order.reservation,)))
        if not found.reservations:
            return ReservationFilled(placed=0, reason="there is no such reservation")
        [reservation] = found.reservations
        state = reservation.state(self._scheduler.clock.now())
        if reservation.levels:
            return ReservationFilled(placed=found.made.get(reservation.id, 0))
        if state in ("planned", "ended"):
            return ReservationFilled(placed=0, missing=reservation.count, reason=f"it is {state}")
        closed = self._closed(found) - order.closed.keys()
        held = HeldSlots(reservation, found.slots.get(reservation.id, ()), closed)
        filled = await self._fill(held, order.closed)
        everything = await every_reservation(self._find, FindReservations(slots=False))
        self._drawn.learn(everything.reservations)
        return filled

    async def _fill(
        self, held: HeldSlots, on_closed_hosts: Mapping[Id, int] = MappingProxyType({})
    ) -> ReservationFilled:
        reservation, placed, reason = held.reservation, 0, ""
        for root, some in _portions(held.to_claim(), on_closed_hosts):
            purpose = SlotPurpose(reservation.id)
            [order] = self._scheduler.begin([_request(reservation, some, root)], purpose)
            [end] = await self._scheduler.place([self._slots_order(reservation, order)])
            if not isinstance(end, events.Publish):
                reason = reason or getattr(end, "why", "")
                continue
            placed += sum(isinstance(each, BuildPlaced) for each in end.messages)
            refused = [each.reason for each in end.messages if isinstance(each, BuildUnplaceable)]
            reason = reason or next(iter(refused), "")
        if surplus := held.to_forget(placed):
            edit = ForgetSlots(reservation=reservation.id, slots=tuple(surplus))
            await self._edit(ReservationEditRequested(edit=edit))
        has = min(held.useful + placed, reservation.count)
        left = reservation.count - has
        return ReservationFilled(placed=has, missing=left, reason=reason if left else "")

    def _closed(self, found: ReservationsFound) -> set[str]:
        """Return the hosts of slots that are down, disabled or drained."""
        roots = {root for slots in found.slots.values() for slot in slots for root in slot.roots}
        if not roots:
            return set()
        source, clock = self._scheduler.source, self._scheduler.clock
        health = self._scheduler.book.health(source, clock.monotonic(), clock.now())
        hosts = [host for host in source.hosts() if host.uuid in roots]
        return {
            host.uuid
            for host in hosts
            if condition(host.traits, health.get((host.cell, host.uuid))) not in ("up", "unknown")
        }

    def _slots_order(self, reservation: Reservation, order: Order) -> Order:
        if order.verdict.invalid:
            return order
        if order.request.forced_host:
            return on_closed(order, [order.request.forced_host])
        if not reservation.hosts:
            return order
        source = self._scheduler.source
        unknown = [host for host in reservation.hosts if not source.named(host)]
        if unknown:
            return order.with_invalid(f"hosts: there is no host {unknown[0]!r}")
        return only_on(order, {root for host in reservation.hosts for root in source.named(host)})


def _portions(missing: Sequence[Id], closed: Mapping[Id, int]) -> Iterator[tuple[Id, tuple[Id, ...]]]:
    """Yield portions of the `missing` slots, one for each order, with the root of the host to claim them on
    ("": any host of the reservation). `closed` has the number of slots for each host that a plan has closed.
    """
    left = deque(missing)
    for root, several in closed.items():
        if some := tuple([left.popleft() for _ in range(min(several, len(left)))]):
            yield root, some
    for rest in portions(list(left), SLOTS_AT_ONCE):
        yield "", tuple(rest)


def _request(reservation: Reservation, slots: tuple[Id, ...], root: Id) -> BuildRequested:
    return BuildRequested(
        request=slots[0],
        instances=slots,
        flavor=reservation.flavor,
        project=reservation.project or UNSAID_ID,
        cell=reservation.cell,
        zone=reservation.zone,
        forced_host=root,
        at_least=1,
        alternates=0,
    )

"""Claims the slots of reservations, on hosts chosen as for builds.

The ids of the slots are derived from the reservation. So placement answers a repeated claim, or the claim of
another scheduler, with the slot's allocations.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from msgspec import structs
from prometheus_client import Gauge

from bus.messages import BuildPlaced, BuildRequested, BuildUnplaceable
from bus.protocol import Ask
from bus.reservations import (
    FillReservation,
    FindReservations,
    Reservation,
    ReservationFilled,
    ReservationsFound,
    slot_consumer,
)
from bus.vocabulary import UNSAID_ID, Id, portions
from scheduler_worker.cloud_reading import on_closed
from scheduler_worker.core import events
from scheduler_worker.core.events import Begun
from scheduler_worker.core.order import Begins, Order
from scheduler_worker.placing import Scheduler

REFRESH_SECONDS = 5.0
SLOTS_AT_ONCE = 100  # slots claimed by one order
SHORT = Gauge("berth_reservations_short", "reservations that should hold capacity and lack slots")


class ReservationFiller:
    """Claims the slots that reservations lack, from the time when their capacity is to be held."""

    def __init__(self, scheduler: Scheduler, find: Ask[FindReservations, ReservationsFound]) -> None:
        self._scheduler = scheduler
        self._find = find

    async def refresh(self) -> None:
        """Read the reservations again, and claim missing slots."""
        found = await self._find(FindReservations(slots=False))
        self._scheduler.drawn.learn(found.reservations)
        now, short = self._scheduler.clock.now(), 0
        for reservation in found.reservations:
            if reservation.levels:  # placement's headroom controller claims the slots
                continue
            missing = reservation.count - found.made.get(reservation.id, 0)
            if missing > 0 and reservation.state(now) in ("held", "active"):
                short += (await self._fill(reservation)).missing > 0
        SHORT.set(short)

    async def fill(self, order: FillReservation) -> ReservationFilled:
        """Claim the slots that a reservation lacks, and return how many it has."""
        found = await self._find(FindReservations(ids=(order.reservation,), slots=False))
        if not found.reservations:
            return ReservationFilled(placed=0, reason="there is no such reservation")
        [reservation] = found.reservations
        state = reservation.state(self._scheduler.clock.now())
        if reservation.levels:
            return ReservationFilled(placed=found.made.get(reservation.id, 0))
        if state in ("planned", "ended"):
            return ReservationFilled(placed=0, missing=reservation.count, reason=f"it is {state}")
        filled = await self._fill(reservation, order.closed)
        everything = await self._find(FindReservations(slots=False))
        self._scheduler.drawn.learn(everything.reservations)
        return filled

    async def _fill(
        self, reservation: Reservation, closed: Mapping[Id, int] = MappingProxyType({})
    ) -> ReservationFilled:
        found = await self._find(FindReservations(ids=(reservation.id,)))
        existing = {slot.consumer for slot in found.slots.get(reservation.id, ())}
        slots = [slot_consumer(reservation.id, number) for number in range(1, reservation.count + 1)]
        missing = [slot for slot in slots if slot not in existing]
        placed, reason = reservation.count - len(missing), ""
        for root, some in _portions(missing, closed):
            begun = self._scheduler.begin([_request(reservation, some, root)])
            [end] = await self._scheduler.place([self._slots_order(reservation, *each) for each in begun])
            if not isinstance(end, events.PublishEnds):
                reason = reason or getattr(end, "why", "")
                continue
            placed += sum(isinstance(each, BuildPlaced) for each in end.messages)
            refused = [each.reason for each in end.messages if isinstance(each, BuildUnplaceable)]
            reason = reason or next(iter(refused), "")
        left = reservation.count - placed
        return ReservationFilled(placed=placed, missing=left, reason=reason if left else "")

    def _slots_order(self, reservation: Reservation, order: Order, event: Begun) -> Begins:
        order = structs.replace(order, is_external=True, reserves=reservation.id)
        if event.refusal:
            return order, event
        if order.request.forced_host:
            return on_closed(order, [order.request.forced_host]), event
        if not reservation.hosts:
            return order, event
        source = self._scheduler.source
        unknown = [host for host in reservation.hosts if not source.named(host)]
        if unknown:
            return order, Begun(f"hosts: there is no host {unknown[0]!r}")
        roots = tuple(sorted({root for host in reservation.hosts for root in source.named(host)}))
        within = [
            replace(each, question=structs.replace(each.question, roots=roots)) for each in order.alternatives
        ]
        return structs.replace(order, alternatives=tuple(within)), event


def _portions(missing: Sequence[Id], closed: Mapping[Id, int]) -> Iterator[tuple[Id, tuple[Id, ...]]]:
    """Yield the slots that are claimed by one order, with their host; "": any host of the reservation."""
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

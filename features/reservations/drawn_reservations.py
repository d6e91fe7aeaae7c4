"""Finds the reservations that requests draw from.

The definitions of the reservations for all builds of a project (`open`) and for evacuations (`failover`) are
read again every few seconds. Their slots are read for each request that may draw from them, so requests of
other projects cost nothing.
"""

from collections.abc import Iterable, Sequence, Set

from msgspec import structs

from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.protocol import Ask
from bus.vocabulary import Allocations, Id
from features.reservations.core.drawing import (
    counted_as_free,
    draw_of,
    drawing_on,
    elsewhere,
    roles_drawing_on,
    undrawn,
    without_chosen,
)
from features.reservations.core.forms import form_in
from features.reservations.core.reserved_help import HeldFor, without_reservations
from features.reservations.messages import (
    FAILOVER,
    FindReservations,
    Reservation,
    ReservationsFound,
    ReservedSlot,
    every_reservation,
    reservation_of,
)
from scheduler_worker.extension import (
    PLAIN,
    Alternative,
    Choosing,
    Narrowing,
    Order,
    Remedies,
    Scope,
    attempts_of,
)

HELD_SECONDS = 5.0  # seconds after which the allocations that explain refusals are read again
MOST_EXPLAINED = 20  # reservations considered to explain a refusal


class DrawnReservations(Narrowing):
    """The narrowing for orders that may draw from reservations, with a query for the present slots."""

    def __init__(
        self, find: Ask[FindReservations, ReservationsFound], source: CandidateSource, clock: Clock
    ) -> None:
        self._find = find
        self._source = source
        self._clock = clock
        self._open: dict[str, list[Id]] = {}  # project → ids of its reservations for all builds (`open`)
        self._failover: list[Id] = []
        self._drawn_ids: tuple[Id, ...] = ()
        self._held: HeldFor = ()
        self._held_at = float("-inf")

    def learn(self, reservations: Iterable[Reservation]) -> None:
        """Store which reservations hold capacity, and which serve requests that do not name a reservation."""
        now, reservations = self._clock.now(), list(reservations)
        self._drawn_ids = tuple([each.id for each in reservations if each.state(now) in ("held", "active")])
        usable = [each for each in reservations if each.state(now) == "active"]
        self._open, self._failover = {}, [each.id for each in usable if each.use == FAILOVER]
        for each in usable:
            if each.use == "open":
                self._open.setdefault(each.project, []).append(each.id)

    async def _read_held(self) -> HeldFor:
        """Return the allocations that reservations hold, by purpose; read again after HELD_SECONDS."""
        if not self._drawn_ids:
            return ()
        if self._clock.monotonic() - self._held_at >= HELD_SECONDS:
            found = await every_reservation(
                self._find, FindReservations(ids=self._drawn_ids[:MOST_EXPLAINED])
            )
            held: dict[str, list[Allocations]] = {}
            for each in found.reservations:
                slots = found.slots.get(each.id, ())
                held.setdefault(each.purpose, []).extend(slot.held for slot in slots if slot.held)
            self._held, self._held_at = tuple(held.items()), self._clock.monotonic()
        return self._held

    def concerns(self, order: Order) -> bool:
        """Return whether an order draws from a reservation, or may do so."""
        if order.attempts and order.preferred.restriction is not None:
            return True
        if not (self._open or self._failover or reservation_of(order.request.parts)):
            return False
        return bool(self._of(order))

    async def prepare(self, orders: Sequence[Order], again: bool) -> Sequence[Order]:
        """Return the orders, restricted to the present slots of the reservations that they draw from. The
        slots are read again after a refused claim: another instance may have taken the slot.
        """
        drawing = [
            () if again and order.preferred.restriction is None else self._of(order) for order in orders
        ]
        ids = dict.fromkeys(id_ for some in drawing for id_ in some)
        if not ids:
            return orders
        found = await every_reservation(self._find, FindReservations(ids=tuple(ids)))
        if again:  # the index must have the claims that have changed the slots
            await self._source.fresh()
        known = {each.id: each for each in found.reservations}
        return [
            self._drawn(order, [known[id_] for id_ in some if id_ in known], found) if some else order
            for order, some in zip(orders, drawing, strict=True)
        ]

    def scope(self, order: Order, alternatives: Sequence[Alternative]) -> Scope:
        draws = [draw for each in alternatives if (draw := draw_of(each)) is not None]
        if not draws:
            return PLAIN
        free = tuple(counted_as_free(alternatives))
        source = draws[0].reservation
        return Scope(alone=bool(free), free=free, source=source, optional=draws[0].is_optional)

    def renew(self, alternative: Alternative, several: int, choosing: Choosing) -> Alternative:
        """Return an alternative without the slots that unsettled choices of this scheduler draw from."""
        draw = draw_of(alternative)
        if draw is None:
            return alternative
        return without_chosen(alternative, choosing.pending.drawn_from(draw.reservation))

    def late(self, alternative: Alternative) -> Alternative:
        return elsewhere(alternative)

    async def remedies(self) -> Remedies:
        held = await self._read_held()
        return lambda order, choosing, tally: without_reservations(order, choosing, tally, held)

    def watch(self, order: Order) -> tuple[object, frozenset[str]]:
        return draw_of(order.preferred), frozenset()

    def _of(self, order: Order) -> Sequence[Id]:
        if drawn := dict.fromkeys(draw.reservation for each in order.alternatives if (draw := draw_of(each))):
            return tuple(drawn)
        if order.purpose.leaves_lost_host:
            return self._failover
        if not order.purpose.boots:
            return ()
        named = reservation_of(order.request.parts)
        return (named,) if named else self._open.get(order.request.project, ())

    def _drawn(self, order: Order, reservations: Sequence[Reservation], found: ReservationsFound) -> Order:
        request = order.request
        named = reservation_of(request.parts)
        if named and not any(each.serves(request.project) for each in reservations):
            return order.with_invalid(f"hints.reservation: there is no reservation {named} in this project")
        plain = [each for each in order.alternatives if each.restriction is None]
        plain = plain or [undrawn(each) for each in order.alternatives]
        now, attempts = self._clock.now(), list[tuple[Alternative, ...]]()
        for reservation in reservations:
            slots = found.slots.get(reservation.id, ())
            if request.parts.sections:
                attempts.append(tuple(roles_drawing_on(plain, reservation, slots, now)))
                continue
            for alike in self._preferred(order, slots):
                attempts += [(drawing_on(each, reservation, slots, now, alike),) for each in plain]
        if not named:
            attempts += attempts_of(request, plain)
        return structs.replace(order, attempts=tuple(attempts), attempt=0)

    def _preferred(self, order: Order, slots: Sequence[ReservedSlot]) -> Sequence[Set[Id] | None]:
        """Return the consumers of the slots from which an order draws first, then None for all slots.

        An evacuation draws first from slots with the form of the instance's present allocations, on hosts
        with the cell, zone and traits of its host: other slots stay free for instances that fit only there.
        """
        holds = order.purpose.holds
        form = form_in(self._source, holds) if holds else None
        if form is None:
            return (None,)
        return {slot.consumer for slot in slots if form_in(self._source, slot.held) == form}, None

"""Operations on reservations: find, create, extend, end; and the release of reservations that have ended."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import structs

from bus.claims import Released, ReleaseRequested
from bus.sql.statement import BoundStatement, Transaction
from bus.vocabulary import Contended, LimitReached, Missing, Taken, page_after
from features.reservations import store as stored
from features.reservations.messages import (
    FAILOVER,
    EndReservation,
    ExtendReservation,
    FindReservations,
    ForgetSlots,
    LevelsCovered,
    LevelsUnknown,
    MakeReservation,
    Reservation,
    ReservationEditAnswered,
    ReservationEdited,
    ReservationEditRequested,
    ReservationOver,
    ReservationResult,
    ReservationsFound,
    levels_unknown,
)
from features.reservations.settings import ReservationSettings
from placement_worker.extension import ClaimOperations, PlacementOperations, again, contended

SLOTS_AT_ONCE = 500

PAGE_BYTES = 500_000  # approximate size of an answer; a message is limited to 1 MiB
SLOT_BYTES = 600  # approximate size of a slot in an answer

log = logging.getLogger(__name__)


@dataclass(eq=False)
class ReservationOperations(PlacementOperations):
    """Operations on reservations. Schedulers claim their slots; claims of instances draw from the slots."""

    claims: ClaimOperations
    limits: ReservationSettings

    async def find(self, query: FindReservations) -> ReservationsFound:
        async with self.database.read() as tx:
            every = await stored.find(tx, query)
            made = await stored.count_slots(tx, [each.id for each in every])
            found, last = _page(every, made if query.slots else {}, query.after)
            ids = [each.id for each in found]
            slots = await stored.find_slots(tx, ids) if query.slots else {}
        return ReservationsFound(
            reservations=tuple(found),
            slots=slots,
            made={id_: made[id_] for id_ in ids if id_ in made},
            last=last,
        )

    async def edit(self, order: ReservationEditRequested) -> ReservationEditAnswered:
        match order.edit:
            case MakeReservation(reservation=reservation, replaces=replaces):
                unknown = await self._unknown_levels(reservation)
                result = unknown or await self._make(reservation, replaces)
            case ExtendReservation(reservation=uuid, ends=ends):
                result = await self._extend(uuid, ends)
            case EndReservation() as end:
                result = await self._end(end)
            case ForgetSlots(reservation=uuid, slots=slots):
                result = await self._forget_slots(uuid, slots)
        return ReservationEditAnswered(result=result)

    async def _unknown_levels(self, reservation: Reservation) -> LevelsUnknown | None:
        """Return the refusal of a reservation with a level of which no host has a label, if there is one."""
        if not reservation.levels:
            return None
        await self.log.memory.fresh()
        rows = self.log.memory.index.rows
        labels = {level for root in self.log.memory.index.trees for level in rows[root].domains}
        return levels_unknown(reservation.levels, labels)

    @again(contended)
    async def _make(self, reservation: Reservation, replaces: Collection[str]) -> ReservationResult:
        async with self.database.write() as tx:
            if reservation.levels and (present := await self._failover(tx, reservation)) is not None:
                return await self._cover(tx, present, reservation.levels, replaces)
            if (full := await self._limit_reached(tx, reservation)) is not None:
                return full
            if await stored.make(tx, reservation, self.clock.now()):
                return ReservationEdited(reservation=reservation, changed=True)
            existing = await stored.find(tx, FindReservations(ids=(reservation.id,)))
        if not existing:
            return Taken(what="name", value=reservation.name)
        same = structs.replace(existing[0], ends=reservation.ends, ended=reservation.ended) == reservation
        return ReservationEdited(reservation=existing[0]) if same else Taken(what="id", value=reservation.id)

    async def _failover(self, tx: Transaction, wanted: Reservation) -> Reservation | None:
        """Return, locked, the failover reservation with levels that has the name and project of `wanted`."""
        query = FindReservations(name=wanted.name, use=FAILOVER)
        for each in await stored.find(tx, query):
            if each.levels and each.project == wanted.project:
                return await stored.lock_one(tx, each.id)
        return None

    async def _cover(
        self, tx: Transaction, present: Reservation, levels: Sequence[str], replaces: Collection[str]
    ) -> ReservationResult:
        """Let a failover reservation cover these levels; its slots that no level needs are released later."""
        dropped = tuple([level for level in present.levels if level not in levels])
        if present.ended:
            return ReservationOver(reservation=present.name)
        if set(present.levels) == set(levels):
            return ReservationEdited(reservation=present)
        if not set(dropped) <= set(replaces):
            return LevelsCovered(levels=present.levels, dropped=dropped)
        changed = structs.replace(present, levels=tuple(levels))
        await stored.save(tx, changed, self.clock.now())
        return ReservationEdited(reservation=changed, changed=True)

    async def _limit_reached(self, tx: Transaction, reservation: Reservation) -> LimitReached | None:
        """Return the limit that a new reservation would exceed; None if there is none, or if it is stored."""
        limits, project = self.limits, reservation.project
        if reservation.count > limits.reservation_slots:
            return LimitReached(
                setting="max_reservation_slots",
                limit=limits.reservation_slots,
                what="instances in a reservation",
            )
        total, of_project, stored_already = await stored.count(tx, reservation)
        if stored_already:
            return None
        if total >= limits.reservations:
            return LimitReached(setting="max_reservations", limit=limits.reservations, what="reservations")
        if of_project >= limits.reservations_project:
            what = f"reservations of project {project}" if project else "reservations without a project"
            limit = limits.reservations_project
            return LimitReached(setting="max_reservations_project", limit=limit, what=what)
        return None

    @again(contended)
    async def _extend(self, uuid: str, ends: float) -> ReservationResult:
        now = self.clock.now()
        async with self.database.write() as tx:
            reservation = await stored.lock_one(tx, uuid)
            if reservation is None:
                return Missing(what="reservation", names=(uuid,))
            if reservation.state(now) == "ended":  # not extended: the slots may already be released
                return ReservationOver(reservation=reservation.name)
            extended = structs.replace(reservation, ends=ends)
            await stored.save(tx, extended, now)
        return ReservationEdited(reservation=extended, changed=extended != reservation)

    async def _end(self, end: EndReservation) -> ReservationResult:
        result = await self._mark(end.reservation)
        if isinstance(result, ReservationEdited):
            released = await self._release_slots(end.reservation)
            if released is None:
                return Contended()
            result = structs.replace(result, released=released)
            if end.forget:
                async with self.database.write() as tx:
                    await stored.forget(tx, end.reservation)
        return result

    @again(contended)
    async def _mark(self, uuid: str) -> ReservationResult:
        """Mark a reservation as ended. Claims that commit later cannot draw from it, and releases return
        nothing to it.
        """
        now = self.clock.now()
        async with self.database.write() as tx:
            reservation = await stored.lock_one(tx, uuid)
            if reservation is None:
                return Missing(what="reservation", names=(uuid,))
            ended = structs.replace(reservation, ended=True)
            await stored.save(tx, ended, now)
        return ReservationEdited(reservation=ended, changed=not reservation.ended)

    async def _release_slots(self, uuid: str) -> int | None:
        """Release the capacity that an ended reservation holds; return the number of released slots, or None
        if conflicts with other transactions prevented the release of a slot.
        """
        async with self.database.read() as tx:
            slots = (await stored.find_slots(tx, [uuid])).get(uuid, ())
        held = [slot.consumer for slot in slots if slot.held]
        return len(held) if await self._release(held) else None

    async def _release(self, slots: list[str], *last: BoundStatement) -> bool:
        orders = [ReleaseRequested(consumer=slot, generation="any") for slot in slots]
        answers = await self.claims.release_many(orders, last=last) if orders else ()
        return all(isinstance(answer.result, Released) for answer in answers)

    async def _forget_slots(self, uuid: str, slots: Collection[str]) -> ReservationResult:
        async with self.database.read() as tx:
            found = await stored.find(tx, FindReservations(ids=(uuid,)))
            of_reservation = (await stored.find_slots(tx, [uuid])).get(uuid, ())
        if not found:
            return Missing(what="reservation", names=(uuid,))
        undrawn = [slot.consumer for slot in of_reservation if slot.consumer in slots and slot.is_undrawn]
        # In the transaction of the releases: a released slot that has a record counts as drawn.
        if not await self._release(undrawn, stored.FORGET_EMPTY.of([(slot,) for slot in undrawn])):
            return Contended()
        return ReservationEdited(reservation=found[0], changed=bool(undrawn), released=len(undrawn))

    async def expire(self) -> None:
        """End the reservations that have reached their end time, and release what ended reservations still
        hold.
        """
        now = self.clock.now()
        async with self.database.read() as tx:
            due = await stored.is_due(tx, now)
        if not due:
            return
        if ended := await self._end_due():
            log.info("%d reservations ended", ended)
        async with self.database.read() as tx:
            slots = await stored.slots_left(tx, SLOTS_AT_ONCE)
        await self._release(slots)

    @again(lambda *_: 0)
    async def _end_due(self) -> int:
        async with self.database.write() as tx:
            return await stored.end_due(tx, self.clock.now())


def _page(
    found: Sequence[Reservation], slots: Mapping[str, int], after: str
) -> tuple[Sequence[Reservation], str]:
    """Return the reservations of a page, and the id after which the next page begins ("": there is none).
    `slots` are the numbers of slots that the answer will contain for the reservations.
    """
    sizes = {each.id: len(_encode(each)) + SLOT_BYTES * slots.get(each.id, 0) for each in found}
    ids, last = page_after(after, sizes, PAGE_BYTES)
    if not after and not last:
        return found, ""
    return sorted((each for each in found if each.id in ids), key=lambda each: each.id), last


_encode = msgspec.json.Encoder().encode

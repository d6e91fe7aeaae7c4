"""SQL for reservations and their slots: create, extend, end, and read or lock them during a claim.

A claim that draws from a slot, or becomes a slot, locks its reservation after the consumers. An edit that
ends a reservation therefore waits for such claims, and later claims see the end.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from bus.sql.database import Database
from bus.sql.statement import Transaction, in_turn, sql
from bus.vocabulary import Allocations
from features.reservations.messages import FindReservations, Reservation, ReservedSlot
from features.reservations.slots import ReservationWorld, SlotRecord

_MAKE = sql("""
    INSERT INTO reservations (uuid, name, project, spec, ends, ended, created_at, updated_at)
    SELECT n.uuid, n.called, n.project, n.spec, n.ends, n.ended, :NOW, :NOW
    FROM {n: uuid str, called str, project str, spec str, ends float, ended bool}
    WHERE true ON CONFLICT DO NOTHING RETURNING uuid
""")
_LOCK = sql("""
    SELECT r.uuid, r.spec, r.ends, r.ended FROM {n: uuid str} JOIN reservations r ON r.uuid = n.uuid
    ORDER BY r.uuid FOR SHARE OF r
""")
_LOCK_ONE = sql("""
    SELECT r.uuid, r.spec, r.ends, r.ended FROM reservations r WHERE r.uuid = :uuid FOR UPDATE OF r
""")
_FIND = "SELECT r.uuid, r.spec, r.ends, r.ended FROM reservations r"
_FIND_ALL = sql(f"""
    {_FIND} WHERE (CAST(:project AS text) = '' OR r.project = CAST(:project AS text))
    AND (CAST(:called AS text) = '' OR r.name = CAST(:called AS text)) ORDER BY r.created_at, r.uuid
""")
_FIND_THESE = sql(f"""
    {_FIND} WHERE r.uuid IN (SELECT n.uuid FROM {{n: uuid str}}) ORDER BY r.created_at, r.uuid
""")
_FIND_DRAWN = sql(f"""
    {_FIND} JOIN reservation_slots s ON s.reservation = r.uuid JOIN consumers c ON c.draws_on = s.uuid
    WHERE c.uuid = CAST(:drawer AS text)
""")
_COUNT_ALL = sql("""
    SELECT count(CASE WHEN r.ended = :no THEN 1 END) AS total,
        count(CASE WHEN r.ended = :no AND r.project = CAST(:project AS text) THEN 1 END) AS of_project,
        count(CASE WHEN r.uuid = CAST(:uuid AS text) THEN 1 END) AS stored
    FROM reservations r
""")
_SAVE = sql("""
    UPDATE reservations SET spec = :spec, ends = :ends, ended = :ended, updated_at = :now WHERE uuid = :uuid
""")
_END_DUE = sql("""
    UPDATE reservations SET ended = :yes, updated_at = :now
    WHERE ended = :no AND ends > 0 AND ends <= :now RETURNING uuid
""")
_FORGET = sql("DELETE FROM reservations WHERE uuid = :uuid")
_SLOTS = sql("""
    SELECT s.uuid, s.reservation, s.project, s.allocations FROM {n: uuid str}
    JOIN reservation_slots s ON s.uuid = n.uuid
""")
_SLOTS_OF = sql("""
    SELECT s.uuid, s.reservation, s.project, s.allocations FROM {n: reservation str}
    JOIN reservation_slots s ON s.reservation = n.reservation ORDER BY s.reservation, s.uuid
""")
_COUNT = sql("""
    SELECT s.reservation, count(*) FROM {n: reservation str}
    JOIN reservation_slots s ON s.reservation = n.reservation GROUP BY s.reservation
""")
_HELD = sql("""
    SELECT c.uuid, p.uuid AS provider, r.uuid AS root, k.name AS class, a.used FROM {n: uuid str}
    JOIN consumers c ON c.uuid = n.uuid JOIN allocations a ON a.consumer_id = c.id
    JOIN resource_providers p ON p.id = a.resource_provider_id
    JOIN resource_providers r ON r.id = p.root_provider_id
    JOIN resource_classes k ON k.id = a.resource_class_id
""")
_DRAWERS = sql("""
    SELECT c.draws_on, c.uuid FROM {n: uuid str} JOIN consumers c ON c.draws_on = n.uuid ORDER BY c.uuid
""")
_ROOTS = sql("""
    SELECT p.uuid AS provider, r.uuid AS root FROM {n: uuid str} JOIN resource_providers p ON p.uuid = n.uuid
    JOIN resource_providers r ON r.id = p.root_provider_id
""")
_DUE = sql("""
    SELECT 1 FROM reservations r WHERE r.ended = :no AND r.ends > 0 AND r.ends <= :now
    UNION ALL SELECT 1 FROM reservations r JOIN reservation_slots s ON s.reservation = r.uuid
    JOIN consumers c ON c.uuid = s.uuid WHERE r.ended = :yes
    LIMIT 1
""")
# Slots of ended reservations that still hold allocations, because a crash interrupted their release.
_LEFT = sql("""
    SELECT s.uuid FROM reservations r JOIN reservation_slots s ON s.reservation = r.uuid
    JOIN consumers c ON c.uuid = s.uuid WHERE r.ended = :yes ORDER BY s.uuid LIMIT :most
""")
_SLOT_IDS = sql("SELECT s.uuid FROM reservation_slots s WHERE s.reservation = :uuid")
# Deletes the records of slots, except of slots that have allocations.
FORGET_EMPTY = sql("""
    DELETE FROM reservation_slots WHERE uuid IN (SELECT n.uuid FROM {n: uuid str})
    AND uuid NOT IN (SELECT c.uuid FROM {n} JOIN consumers c ON c.uuid = n.uuid)
""")
_FORGET_SLOTS = sql("DELETE FROM reservation_slots WHERE reservation = :uuid")
INSERT_SLOTS = sql("""
    INSERT INTO reservation_slots (uuid, reservation, project, allocations)
    SELECT n.uuid, n.reservation, n.project, n.allocations
    FROM {n: uuid str, reservation str, project str, allocations str}
""")
DRAW = sql("UPDATE consumers SET draws_on = n.slot FROM {n: id int, slot str} WHERE consumers.id = n.id")

_decode = msgspec.json.Decoder(Reservation).decode
_decode_allocations = msgspec.json.Decoder(Allocations).decode
_encode = msgspec.json.Encoder().encode


def _reservation(row: Any) -> Reservation:
    read = _decode(row["spec"])
    return msgspec.structs.replace(read, ends=row["ends"], ended=bool(row["ended"]))


def _slot(row: Any) -> SlotRecord:
    allocations = _decode_allocations(row["allocations"])
    return SlotRecord(row["uuid"], row["reservation"], row["project"], allocations)


async def make(tx: Transaction, reservation: Reservation, now: float) -> bool:
    """Store a reservation; return False if its id, or its name in its project, exists."""
    row = (
        reservation.id,
        reservation.name,
        reservation.project,
        _encode(reservation).decode(),
        reservation.ends,
        reservation.ended,
    )
    return bool(await _MAKE(tx, [row], now=now))


async def count(tx: Transaction, reservation: Reservation) -> tuple[int, int, bool]:
    """Return the number of all reservations that have not ended, of those of the project of `reservation`,
    and whether it exists. The numbers stay true until the end of the transaction.
    """
    await in_turn(tx, "reservations")
    [row] = await _COUNT_ALL(tx, project=reservation.project, uuid=reservation.id, no=False)
    return row["total"], row["of_project"], bool(row["stored"])


async def lock_one(tx: Transaction, uuid: str) -> Reservation | None:
    return next((_reservation(row) for row in await _LOCK_ONE(tx, uuid=uuid)), None)


async def save(tx: Transaction, reservation: Reservation, now: float) -> None:
    spec = _encode(reservation).decode()
    await _SAVE(tx, uuid=reservation.id, spec=spec, ends=reservation.ends, ended=reservation.ended, now=now)


async def forget(tx: Transaction, uuid: str) -> None:
    await _FORGET_SLOTS(tx, uuid=uuid)
    await _FORGET(tx, uuid=uuid)


async def is_due(tx: Transaction, now: float) -> bool:
    """Return whether a reservation has reached its end time, or an ended reservation still holds capacity."""
    return bool(await _DUE(tx, now=now, yes=True, no=False))


async def slot_ids(tx: Transaction, reservation: str) -> set[str]:
    return {uuid for (uuid,) in await _SLOT_IDS(tx, uuid=reservation)}


async def end_due(tx: Transaction, now: float) -> int:
    """End the reservations that have reached their end time; return their number."""
    return len(await _END_DUE(tx, now=now, yes=True, no=False))


async def slots_left(tx: Transaction, most: int) -> list[str]:
    """Return at most `most` slots of ended reservations that still hold something."""
    return [uuid for (uuid,) in await _LEFT(tx, yes=True, most=most)]


async def find(tx: Transaction, query: FindReservations) -> list[Reservation]:
    if query.drawn_by:
        rows = await _FIND_DRAWN(tx, drawer=query.drawn_by)
    elif query.ids:
        rows = await _FIND_THESE(tx, [(id_,) for id_ in query.ids])
    else:
        rows = await _FIND_ALL(tx, project=query.project, called=query.name)
    found = map(_reservation, rows)
    return [each for each in found if not query.use or each.use == query.use]


async def count_slots(tx: Transaction, reservations: Iterable[str]) -> dict[str, int]:
    return dict(await _COUNT(tx, [(uuid,) for uuid in reservations]))


async def find_slots(tx: Transaction, reservations: Iterable[str]) -> dict[str, tuple[ReservedSlot, ...]]:
    """Return the slots of each of the given reservations, with what they hold and the consumers that drew
    from them.
    """
    records = [_slot(row) for row in await _SLOTS_OF(tx, [(uuid,) for uuid in reservations])]
    if not records:
        return {}
    listed = [(record.consumer,) for record in records]
    held: dict[str, Allocations] = {}
    for row in await _HELD(tx, listed):
        held.setdefault(row["uuid"], {}).setdefault(row["provider"], {})[row["class"]] = row["used"]
    drawers: dict[str, list[str]] = {}
    for slot, drawer in await _DRAWERS(tx, listed):
        drawers.setdefault(slot, []).append(drawer)
    providers = {provider for record in records for provider in record.allocations}
    roots = dict(await _ROOTS(tx, [(uuid,) for uuid in providers]))
    found: dict[str, list[ReservedSlot]] = {}
    for record in records:
        of_slot = sorted({roots[provider] for provider in record.allocations if provider in roots})
        found.setdefault(record.reservation, []).append(
            ReservedSlot(
                consumer=record.consumer,
                allocations=record.allocations,
                held=held.get(record.consumer, {}),
                roots=tuple(of_slot),
                drawn_by=tuple(drawers.get(record.consumer, ())),
            )
        )
    return {reservation: tuple(slots) for reservation, slots in found.items()}


async def read_slots(database: Database, slots: Collection[str]) -> dict[str, SlotRecord]:
    """Return the records of the given slots by uuid; a missing slot is left out. A record has the allocations
    that its slot reserved at first, and never changes.
    """
    async with database.read_single() as tx:
        return {row["uuid"]: _slot(row) for row in await _SLOTS(tx, [(uuid,) for uuid in slots])}


async def reservations_of(tx: Transaction, slots: Collection[str]) -> dict[str, str]:
    """Return the reservations of the given slots, by the slots' uuids; a missing slot is left out."""
    if not slots:
        return {}
    return {row["uuid"]: row["reservation"] for row in await _SLOTS(tx, [(uuid,) for uuid in slots])}


async def lock(
    tx: Transaction, slots: Mapping[str, SlotRecord], filled: Collection[str]
) -> dict[str, Reservation]:
    """Lock and return the reservations of the given slots, and those to which claims add slots (`filled`)."""
    wanted = sorted({record.reservation for record in slots.values()}.union(filled))
    return {row["uuid"]: _reservation(row) for row in await _LOCK(tx, [(uuid,) for uuid in wanted])}


def slot_rows(world: ReservationWorld) -> list[tuple[Any, ...]]:
    """Return the database rows to insert for the slots that were claimed in this transaction."""
    return [
        (slot.consumer, slot.reservation, slot.project, _encode(slot.allocations).decode())
        for slot in world.made.values()
    ]

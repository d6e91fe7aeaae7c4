"""The rule of reservations: claims draw allocations from slots of reservations; releases return them."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from bus.claims import Choice, ClaimRequested, ConsumerClaim, RuleRefused
from bus.parts import Part
from bus.sql.database import Database
from bus.sql.statement import BoundStatement, Transaction
from bus.vocabulary import Allocations, joined, without
from features.reservations import store as reservations
from features.reservations.messages import RESERVATION, DrawPart, SlotClaim, reserves, slot_drawn
from features.reservations.slots import ReservationWorld, SlotRecord, reservation_refusal
from placement_worker.extension import Book, ClaimRule, ClaimScope, ClaimWorld, Holder, Unread

SLOT = "draws_on"  # column of consumers: the slot of a reservation to which released allocations return


@dataclass(frozen=True, slots=True)
class _SlotsRead:
    """The slots that were looked up before the transaction, and the records of those that exist."""

    named: Collection[str]
    records: Mapping[str, SlotRecord]


class ReservationRule(ClaimRule):
    name = "reservations"
    locks = "reservations"
    columns: ClassVar = {SLOT: "it draws from a reservation"}
    holder_types = (RESERVATION,)

    def __init__(self, database: Database, book: Book) -> None:
        self._database = database
        self._book = book

    async def prepare(self, scope: ClaimScope, now: float) -> None:
        """Read the records of the slots that claims name, or that an earlier attempt of a release lacked."""
        named = {slot for claim in scope.claims for slot in _slots_of(claim)}.union(scope.unread)
        if named:
            records = await reservations.read_slots(self._database, named)
            slots = [record.claim() for record in records.values()]
            await self._book.know_owners(self._database, slots, now)
            scope.state[ReservationRule] = _SlotsRead(named, records)

    def needs(self, scope: ClaimScope) -> bool:
        read: _SlotsRead | None = scope.state.get(ReservationRule)
        if read is not None:
            scope.locks.add(self.locks)
            returns = not scope.claims
            for uuid, record in read.records.items():
                if returns:  # allocations can return to a slot that holds nothing now: insert its consumer
                    scope.new_consumers.setdefault(uuid, record.claim())
                elif uuid not in scope.new_consumers:
                    scope.other_consumers.add(uuid)
        # The slots from which existing consumers drew are known when they are locked.
        return read is not None or bool(scope.other_consumers) or scope.leaves_holders

    async def read(self, tx: Transaction, scope: ClaimScope, world: ClaimWorld) -> None:
        read: _SlotsRead | None = scope.state.get(ReservationRule)
        if read is None:
            world.state[ReservationRule] = ReservationWorld(world.now)
            return
        filled = {id_ for claim in scope.claims if (id_ := reserves(claim))}
        locked = await reservations.lock(tx, read.records, filled)
        state = ReservationWorld(world.now, locked, read.records, read.named)
        if scope.cell:
            drawn = {slot for each in world.holders.values() if (slot := each.marks.get(SLOT)) is not None}
            state.drawn_from = await reservations.reservations_of(tx, drawn)
        world.state[ReservationRule] = state

    def admits_cell(self, part: Part, claim: ConsumerClaim, world: ClaimWorld) -> bool:
        """Admit that a cell tries an alternate which draws from a slot that the scheduler may have chosen."""
        if not isinstance(part, DrawPart):
            return False
        drawn = world.holders[claim.consumer].marks_were.get(SLOT)
        return _state(world).admits_alternate(part.slot, drawn, claim)

    def bars(self, claim: ConsumerClaim, world: ClaimWorld) -> RuleRefused | None:
        if SlotClaim not in claim.parts:
            return None
        why = _state(world).bars_slot(claim)
        return reservation_refusal(why) if why else None

    def before(self, claim: ConsumerClaim, choice: Choice, world: ClaimWorld) -> RuleRefused | None:
        """Release the allocations of a choice from the slot of a reservation that it names, so
        that the claim can get them. Return a refusal if the slot does not hold all of them, or if the claim
        may not draw from the slot.
        """
        slot = slot_drawn(choice)
        if slot is None:
            return None
        state, holder = _state(world), world.holders.get(slot)
        held = {} if holder is None else holder.held
        if why := state.bars_draw(slot, held, claim, choice.allocations):
            return reservation_refusal(why)
        assert holder is not None  # the slot's consumer holds the allocations
        left = without(held, choice.allocations)
        by = state.slots[slot].claim() if left else None
        world.hold(holder, holder.generation + 1 if left else 0, left, by)
        _set_slot(world.holders[claim.consumer], slot, world)
        return None

    def inherited(self, source: Holder, heir: Holder, claim: ConsumerClaim | None, world: ClaimWorld) -> None:
        if claim is not None:
            _set_slot(heir, source.marks.get(SLOT), world)
        else:
            _set_slot(heir, source.marks.get(SLOT) or heir.marks.get(SLOT), world)
            _set_slot(source, None, world)

    def released(self, holder: Holder, was: Allocations, world: ClaimWorld) -> None:
        """Return released allocations to the slot from which they were drawn."""
        slot = holder.marks.get(SLOT)
        if slot is None:
            return
        state = _state(world)
        if slot not in state.read:
            world.unread.add(slot)
            raise Unread
        of_slot = world.holders.get(slot)
        if of_slot is not None and (back := state.returned(slot, of_slot.held, was)):
            by = world.placeholders.get(slot) or state.slots[slot].claim()
            world.hold(of_slot, of_slot.generation + 1, joined(of_slot.held, back), by)

    def accepted(self, request: ClaimRequested, world: ClaimWorld) -> None:
        for claim in request.claims:
            if SlotClaim in claim.parts:
                _state(world).make(claim, world.holders[claim.consumer].held)

    def write(self, world: ClaimWorld) -> Iterable[BoundStatement]:
        if rows := world.marked(SLOT):
            yield reservations.DRAW.of(rows)
        if (state := _state(world)).made:
            yield reservations.INSERT_SLOTS.of(reservations.slot_rows(state))


def _state(world: ClaimWorld) -> ReservationWorld:
    state: ReservationWorld = world.state[ReservationRule]
    return state


def _set_slot(holder: Holder, slot: str | None, world: ClaimWorld) -> None:
    if slot != holder.marks.get(SLOT):
        world.journal.set_item(holder.marks, SLOT, slot)


def _slots_of(claim: ConsumerClaim) -> Iterator[str]:
    """Yield the slots of reservations that a claim draws from, or becomes."""
    for choice in claim.choices:
        if slot := slot_drawn(choice):
            yield slot
    if SlotClaim in claim.parts:
        yield claim.consumer

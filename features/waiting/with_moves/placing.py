"""Evaluates waiting moves, and ends those that get hosts, expire, fail or are cancelled."""

from collections.abc import Sequence
from functools import lru_cache

from msgspec import structs

from bus import parts
from bus.decisions import Decision
from bus.errors import NOT_JSON
from bus.parts import DecisionParts
from bus.vocabulary import Id, Message
from features.moves.core.repeated import conflict_with_request
from features.moves.core.start import Barred, MovePurpose, MoveStart, Stopped, asked_by, refused
from features.moves.messages import DecidedMove, MovePlaced, MoveRequested
from features.moves.placing import MovePlacing, RequestedMove, refusal_of
from features.waiting.core.waiting_request import Subject
from features.waiting.messages import CRASHED
from features.waiting.reasons import decision_of, expired_order, waited_for
from features.waiting.results import (
    PATIENCE,
    SOON,
    Ended,
    Evaluated,
    Evaluation,
    Renewal,
    RetryLater,
    StillWaiting,
    UndoPlaced,
    Woken,
)
from features.waiting.store import WaitingStore
from features.waiting.tables.queued import QueuedRequest
from scheduler_worker.extension import (
    CANCELLED,
    CANCELLED_CODE,
    LONGEST_PAUSE,
    ComeAgain,
    DeadLetterRequest,
    Fenced,
    Order,
    Purpose,
    failed,
    log,
)

LOOKED_AT = 100  # waiting moves whose builds are read at a time, by a query to each of their cells

_encode = parts.stored_encoder().encode
_start = lru_cache(1024)(parts.stored_decoder(MoveStart).decode)


class WaitingMoves:
    """Evaluates waiting moves. The subject of a waiting move has its `MoveStart`."""

    purpose: type[Purpose] = MovePurpose
    not_waiting = "it does not wait any more: it has just started, or was refused"

    def __init__(self, store: WaitingStore, placing: MovePlacing) -> None:
        self._scheduler = placing.scheduler
        self._store = store
        self._placing = placing
        self.undo_placed: UndoPlaced = placing.undoing.undo_placed
        self._looked_at: set[Id] = set()  # moves read since all waiting moves were last read

    def message_of(self, order: Order) -> Message:
        return _purpose_of(order).start.asked

    def subject_of(self, order: Order) -> Subject:
        return _subject(_purpose_of(order).start, order.request.cell)

    def refused_for(self, order: Order, first: Id) -> Order:
        return failed(order, f"another move of it waits for room: {first}", Decision(code="moving"))

    def first_of(self, move: Id) -> MoveRequested | None:
        """Return the request for a waiting move of this scheduler."""
        entry = self._store.requests.get(move)
        return None if entry is None or entry.subject is None else _start_of(entry).asked

    def conflict(self, first: QueuedRequest, again: QueuedRequest) -> Message | None:
        return conflict_with_request(_start_of(first).asked, _start_of(again).asked)

    def can_read(self, subject: Subject) -> bool:
        try:
            _start(subject.data)
        except NOT_JSON:
            return False
        return True

    def begin(self, entry: QueuedRequest) -> Order:
        [order] = self._scheduler.begin_for([asked_by(_start_of(entry))])
        return order

    def is_placed(self, message: Message) -> bool:
        return isinstance(message, MovePlaced)

    def decision_parts(self, entry: QueuedRequest) -> DecisionParts:
        return DecisionParts(DecidedMove.of(_start_of(entry).asked))

    async def cancelled(self, entry: QueuedRequest, fenced: Fenced) -> Message:
        asked = _start_of(entry).asked
        why = fenced.before.get(entry.request, CANCELLED)
        if why == CANCELLED:
            decision = structs.replace(entry.decision, code=CANCELLED_CODE)
            refusal = refused(asked, why, CANCELLED_CODE, decision)
        else:  # the move ended before, for another reason
            refusal = refused(asked, why, "")
        await self._store.refusals.add([refusal_of(asked, entry.message, refusal)])
        return refusal

    async def evaluate(self, woken: Sequence[Woken]) -> Sequence[Evaluated]:
        """Try to begin woken moves; return the result of each."""
        batch = [self._course_of(item.queued, item.excluding) for item in woken]
        for requested, found in zip(batch, await self._placing.look_up(batch), strict=True):
            if found is not None:
                requested.take(ComeAgain(LONGEST_PAUSE, LONGEST_PAUSE, found.barred.why))
        await self._placing.begin(batch)
        await self._placing.finish(batch)
        return self._results(batch, woken)

    async def end(self, expired: Sequence[Woken]) -> Sequence[Evaluated]:
        """Try to begin expired moves once more; return the final result of each."""
        now = self._scheduler.clock.now()
        batch = [
            self._course_of(item.queued, item.excluding, waited=max(now - item.queued.since, 0.0))
            for item in expired
        ]
        unknown = await self._placing.look_up(batch)
        for requested, item, found in zip(batch, expired, unknown, strict=True):
            if found is not None:
                why = waited_for(item.queued, found.barred.why)
                requested.take(Stopped(Barred(code="waited", why=why)))
        await self._placing.begin(batch)
        ending = [
            (requested, expired_order(requested.order, item.queued, requested.state.taken.state))
            for requested, item in zip(batch, expired, strict=True)
            if requested.state.taken is not None and requested.order is not None and requested.state.begins
        ]
        await self._placing.place(ending)
        await self._placing.finish(batch)
        return self._results(batch, expired)

    async def fail(self, woken: Sequence[Woken], why: str) -> Sequence[Evaluated]:
        """End moves whose evaluation failed repeatedly."""
        batch = [self._course_of(item.queued) for item in woken]
        for requested in batch:
            requested.take(Stopped(Barred(code=CRASHED, why=why)))
        await self._placing.finish(batch)
        return self._results(batch, woken)

    async def recheck(self, waiting: Sequence[QueuedRequest]) -> Sequence[tuple[QueuedRequest, Evaluated]]:
        """Read the builds of up to `LOOKED_AT` waiting moves from their cells again, and return these moves'
        results. Successive calls read different moves, until all were read. Publish the orders of moves that
        have already started: a started move may fit nowhere else.
        """
        new = [entry for entry in waiting if entry.request not in self._looked_at]
        if len(new) <= LOOKED_AT:
            self._looked_at.difference_update(entry.request for entry in waiting)
        looked_at = new[:LOOKED_AT] or waiting[:LOOKED_AT]
        self._looked_at.update(entry.request for entry in looked_at)
        if not looked_at:
            return ()
        batch = [self._course_of(entry) for entry in looked_at]
        await self._placing.look_up(batch)
        unsure = [requested for requested in batch if requested.asked.move in self._store.unsure]
        await self._placing.came_before([requested for requested in unsure if requested.state.begins])
        await self._placing.finish(batch)
        return [
            (
                entry,
                _ended(requested)
                or RetryLater(0.0, _renewal(entry, None if requested.state.end else requested.state.start)),
            )
            for entry, requested in zip(looked_at, batch, strict=True)
        ]

    def _course_of(
        self, entry: QueuedRequest, excluding: frozenset[str] = frozenset(), waited: float = 0.0
    ) -> RequestedMove:
        start = _start_of(entry)
        limit = self._store.held.limit_of(excluding, entry.message.project)
        requested = RequestedMove(
            start.asked, narrowed=lambda order: order.limited(limit).with_part(Evaluation()), waited=waited
        )
        requested.take(start)
        return requested

    def _results(self, batch: Sequence[RequestedMove], woken: Sequence[Woken]) -> Sequence[Evaluated]:
        pairs = zip(batch, woken, strict=True)
        return [self._result(requested, item.queued) for requested, item in pairs]

    def _result(self, requested: RequestedMove, entry: QueuedRequest) -> Evaluated:
        state = requested.state
        renewal = _renewal(entry, state.start)
        if (ended := _ended(requested)) is not None:
            return ended
        if isinstance(state.end, ComeAgain):
            after = self._scheduler.clock.chance.uniform(state.end.least, state.end.most)
            return RetryLater(after, renewal)
        if state.taken is None or state.end is not None:
            return RetryLater(PATIENCE, renewal)
        self._scheduler.retries.end(requested.asked.move)  # a later retry begins a new time limit
        waits = state.taken.state
        if waits.is_explained:
            return StillWaiting(waits.why, decision_of(waits), renewal, waits.wakes_on)
        return RetryLater(SOON, renewal)


def _ended(requested: RequestedMove) -> Ended | None:
    end = requested.state.end
    if isinstance(end, DeadLetterRequest):
        log.error("move %s: %s", requested.asked.move, end.why)
    return None if end is None or isinstance(end, ComeAgain | DeadLetterRequest) else Ended(end)


def _purpose_of(order: Order) -> MovePurpose:
    assert isinstance(order.purpose, MovePurpose), order
    return order.purpose


def _subject(start: MoveStart, cell: str) -> Subject:
    asked = start.asked
    return Subject(
        purpose=MovePurpose.name,
        action=asked.kind,
        instance=asked.build,
        lane=cell,
        data=_encode(start).decode(),
    )


def _start_of(entry: QueuedRequest) -> MoveStart:
    assert entry.subject is not None, entry.request
    return _start(entry.subject.data)


def _renewal(entry: QueuedRequest, start: MoveStart | None) -> Renewal | None:
    """Return a waiting move with the data of its last evaluation; None if they are unknown or unchanged."""
    if start is None or start == _start_of(entry):
        return None
    message = start.request()
    return Renewal(message, _subject(start, message.cell))

"""Begins new and waiting moves, and stores moves that must wait for capacity."""

from collections.abc import Sequence

from bus.context import stored_context
from bus.decisions import CRASHED
from bus.moves import MoveRequested
from bus.vocabulary import Id
from scheduler_worker.core.events import ComeAgain, DeadLetterRequest
from scheduler_worker.core.move_start import Barred
from scheduler_worker.core.move_state import SeenThrough, Stopped
from scheduler_worker.core.order import Order
from scheduler_worker.core.placing import LONGEST_PAUSE
from scheduler_worker.dependencies import log
from scheduler_worker.move_starter import MoveOutcome, MoveStarter, StartingMove
from scheduler_worker.store.parked import ParkedRequest
from scheduler_worker.waiting.queue import (
    PATIENCE,
    SOON,
    Ended,
    Evaluated,
    RetryLater,
    StillWaiting,
    UndoPlaced,
    Woken,
)
from scheduler_worker.waiting.reasons import decision_of, expired_order, waited_for
from scheduler_worker.waiting.store import Marked, WaitingStore

LOOKED_AT = 100  # waiting moves whose builds are read at a time, by a query to each of their cells


class WaitingMoves:
    """Begins, refuses or stores new moves, and evaluates waiting moves again."""

    def __init__(self, store: WaitingStore, starter: MoveStarter) -> None:
        self._scheduler = starter.scheduler
        self._store = store
        self._starter = starter
        self.undo_placed: UndoPlaced = starter.undoing.undo_placed
        self._looked_at: set[Id] = set()  # moves read since all waiting moves were last read

    async def place_many(self, requests: Sequence[MoveRequested]) -> list[MoveOutcome]:
        """Begin, refuse or store new moves. Return for each its messages, `Retry` or `Poison`."""
        store = self._store
        moves = [StartingMove(request) for request in requests]
        for move in moves:
            if move.asked.move in store.requests:  # the move waits already: nothing is published
                move.take(SeenThrough())
        store.queues.settle(self._scheduler.clock.monotonic())
        now, seen = self._scheduler.clock.now(), self._scheduler.source.seen
        mark, moved = store.queues.mark, store.marks

        def aside(move: StartingMove, order: Order) -> bool:
            move.behind = bool(move.asked.wait) and store.is_behind(order, now)
            return move.behind

        def entry(move: StartingMove) -> ParkedRequest:
            assert move.order is not None
            context, park = stored_context(move.asked), move.state.park
            if park is None:
                return store.behind(move.order, now, seen, context)
            return store.waiting(move.order, now, seen, park.why, decision_of(park), context)

        async def park(waiting: Sequence[StartingMove]) -> None:
            await self._starter.came_before(waiting)
            keeping = [(move, entry(move)) for move in waiting if move.state.begins]
            if not keeping:
                return
            first, ours = await store.add([request for _, request in keeping])
            stored: list[Marked] = []
            for move, request in keeping:
                other = first[move.asked.build]
                if other != request.request:
                    why = f"another move of it waits for room: {other}"
                    move.take(Stopped(Barred(code="moving", why=why)))
                    continue
                move.take(SeenThrough())
                stored.append((request, None if move.behind else mark))
            store.enter_stored(stored, ours, moved)

        return await self._starter.place_new(moves, aside, park)

    async def evaluate(self, woken: Sequence[Woken]) -> Sequence[Evaluated]:
        moves = [self._starting(item.parked, item.excluding) for item in woken]
        for move, found in zip(moves, await self._starter.look_up(moves), strict=True):
            if found is not None:
                move.take(ComeAgain(LONGEST_PAUSE, LONGEST_PAUSE, found.barred.why))
        await self._starter.begin(moves)
        await self._starter.finish(moves)
        return [self._result(move) for move in moves]

    async def end(self, expired: Sequence[Woken]) -> Sequence[Evaluated]:
        now = self._scheduler.clock.now()
        moves = [
            self._starting(item.parked, item.excluding, waited=max(now - item.parked.since, 0.0))
            for item in expired
        ]
        unknown = await self._starter.look_up(moves)
        for move, item, found in zip(moves, expired, unknown, strict=True):
            if found is not None:
                why = waited_for(item.parked, found.barred.why)
                move.take(Stopped(Barred(code="waited", why=why)))
        await self._starter.begin(moves)
        ending = [
            (move, expired_order(move.order, item.parked, move.state.park))
            for move, item in zip(moves, expired, strict=True)
            if move.state.park is not None and move.order is not None and move.state.begins
        ]
        await self._starter.place(ending)
        await self._starter.finish(moves)
        return [self._result(move) for move in moves]

    async def fail(self, woken: Sequence[Woken], why: str) -> Sequence[Evaluated]:
        moves = [self._starting(item.parked) for item in woken]
        for move in moves:
            move.take(Stopped(Barred(code=CRASHED, why=why)))
        await self._starter.finish(moves)
        return [self._result(move) for move in moves]

    async def recheck(self, waiting: Sequence[ParkedRequest]) -> Sequence[tuple[ParkedRequest, Evaluated]]:
        """Read the builds of up to `LOOKED_AT` waiting moves from their cells again, and return these moves'
        results. Successive calls read different moves, until all were read. Publish the orders of moves that
        have already begun: a begun move may fit nowhere else.
        """
        new = [entry for entry in waiting if entry.request not in self._looked_at]
        if len(new) <= LOOKED_AT:
            self._looked_at.difference_update(entry.request for entry in waiting)
        looked_at = new[:LOOKED_AT] or waiting[:LOOKED_AT]
        self._looked_at.update(entry.request for entry in looked_at)
        if not looked_at:
            return ()
        moves = [self._starting(entry) for entry in looked_at]
        await self._starter.look_up(moves)
        unsure = [move for move in moves if move.asked.move in self._store.unsure]
        await self._starter.came_before([move for move in unsure if move.state.begins])
        await self._starter.finish(moves)
        starts = [None if move.state.end else move.state.start for move in moves]
        ends = [_ended(move) for move in moves]
        results = [end or RetryLater(0.0, start) for end, start in zip(ends, starts, strict=True)]
        return list(zip(looked_at, results, strict=True))

    def _starting(
        self, entry: ParkedRequest, excluding: frozenset[str] = frozenset(), waited: float = 0.0
    ) -> StartingMove:
        assert entry.start is not None
        why = self._store.why_reserved_to(entry.message.project)
        move = StartingMove(entry.start.asked, excluding=excluding, why_reserved=why, waited=waited)
        move.take(entry.start)
        return move

    def _result(self, move: StartingMove) -> Evaluated:
        state = move.state
        if (ended := _ended(move)) is not None:
            return ended
        if isinstance(state.end, ComeAgain):
            after = self._scheduler.clock.chance.uniform(state.end.least, state.end.most)
            return RetryLater(after, state.start)
        if state.park is None or state.end is not None:
            return RetryLater(PATIENCE, state.start)
        self._scheduler.retries.end(move.asked.move)  # a later retry begins a new time limit
        if state.park.shorts or state.park.over_quota:
            return StillWaiting(state.park.why, decision_of(state.park), state.start)
        return RetryLater(SOON, state.start)


def _ended(move: StartingMove) -> Ended | None:
    end = move.state.end
    if isinstance(end, DeadLetterRequest):
        log.error("move %s: %s", move.asked.move, end.why)
    return None if end is None or isinstance(end, ComeAgain | DeadLetterRequest) else Ended(end)

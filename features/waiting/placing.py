"""Evaluates waiting builds and moves, and ends those that get hosts, expire or fail."""

from collections.abc import Sequence

from msgspec import structs

from bus.decisions import Decision
from bus.vocabulary import Id
from features.moves.core.start import Barred, Stopped
from features.moves.placing import MovePlacing, RequestedMove
from features.waiting.messages import CRASHED
from features.waiting.reasons import Waits, decision_of, expired_order, waited_for
from features.waiting.results import (
    PATIENCE,
    SOON,
    Ended,
    Evaluated,
    Evaluation,
    RetryLater,
    StillWaiting,
    UndoPlaced,
    Woken,
)
from features.waiting.store import WaitingStore
from features.waiting.tables.queued import QueuedRequest
from scheduler_worker.extension import (
    LONGEST_PAUSE,
    ComeAgain,
    DeadLetterRequest,
    Order,
    Scheduler,
    Verdict,
    events,
    log,
)


class WaitingBuilds:
    """Evaluates waiting builds."""

    def __init__(self, scheduler: Scheduler, store: WaitingStore) -> None:
        self.scheduler = scheduler
        self.store = store
        self.undo_placed: UndoPlaced = scheduler.ending.undo_placed

    def polls(self, entry: QueuedRequest) -> bool:
        """Return whether a request must be tried again although no event says that it fits."""
        polls = any(fallback.polls(entry.message) for fallback in self.scheduler.fallbacks)
        return polls and entry.start is None

    async def evaluate(self, woken: Sequence[Woken]) -> Sequence[Evaluated]:
        orders = self.scheduler.begin([item.queued.message for item in woken], again=True)
        ends = await self.scheduler.place(self._narrowed(woken, orders))
        return await self._results([item.queued for item in woken], ends)

    async def claimed(self, entries: Sequence[QueuedRequest]) -> list[tuple[QueuedRequest, Evaluated]]:
        """Return the results of the waiting builds that already hold hosts for all of their instances."""
        ending = self.scheduler.ending
        held = await ending.held(instance for entry in entries for instance in entry.message.instances)
        found = [entry for entry in entries if held.keys() >= {*entry.message.instances}]
        orders = self.scheduler.begin([entry.message for entry in found], again=True)
        again = [
            _evaluated(order, entry).ended_before(order.instances)
            for entry, order in zip(found, orders, strict=True)
        ]
        ends = await self.scheduler.place(again) if again else []
        return list(zip(found, await self._results(found, ends), strict=True))

    async def end(self, expired: Sequence[Woken]) -> Sequence[Evaluated]:
        orders = self.scheduler.begin([item.queued.message for item in expired], again=True)
        ends = await self.scheduler.place(self._narrowed(expired, orders))
        last = [
            (index, expired_order(orders[index], expired[index].queued, end.state))
            for index, end in enumerate(ends)
            if isinstance(end, events.TakenOver)
        ]
        fenced = await self.scheduler.place([order for _, order in last])
        for (index, _), end in zip(last, fenced, strict=True):
            ends[index] = end
        return await self._results([item.queued for item in expired], ends)

    async def fail(self, woken: Sequence[Woken], why: str) -> Sequence[Evaluated]:
        """End waiting requests without an evaluation; builds that hold hosts already are published."""
        entries = [item.queued for item in woken]
        orders = self._narrowed(woken, self.scheduler.begin([entry.message for entry in entries], again=True))
        failed = Verdict(reason=why, decision=Decision(code=CRASHED))
        ending = [
            structs.replace(order, verdict=structs.replace(failed, lacks_remedies=bool(order.attempts)))
            for order in orders
        ]
        return await self._results(entries, await self.scheduler.place(ending))

    def _narrowed(self, woken: Sequence[Woken], orders: Sequence[Order]) -> list[Order]:
        limit_of = self.store.held.limit_of
        return [
            _evaluated(order.limited(limit_of(item.excluding, order.request.project)), item.queued)
            for item, order in zip(woken, orders, strict=True)
        ]

    async def _results(self, entries: Sequence[QueuedRequest], ends: Sequence[events.End]) -> list[Evaluated]:
        results = [self._result(request, end) for request, end in zip(entries, ends, strict=True)]
        pairs = zip(entries, results, strict=True)
        ended = [(entry.message, result.messages) for entry, result in pairs if isinstance(result, Ended)]
        await self.store.refusals.add_builds(ended)
        return results

    def _result(self, entry: QueuedRequest, end: events.End) -> Evaluated:
        match end:
            case events.Publish(messages=messages):
                return Ended(messages)
            case events.TakenOver(state=Waits() as waits) if waits.is_explained:
                return StillWaiting(waits.why, decision_of(waits), wakes_on=waits.wakes_on)
            case events.TakenOver():  # placement refused the claim; the index may not show the reason yet
                return RetryLater(SOON)
            case events.ComeAgain(least=least, most=most):
                return RetryLater(self.scheduler.clock.chance.uniform(least, most))
            case events.DeadLetterRequest(why=why):
                log.error("request %s: %s", entry.request, why)
                return RetryLater(60.0)
            case _:
                return RetryLater(PATIENCE)


def _evaluated(order: Order, entry: QueuedRequest) -> Order:
    """Return the order of a waiting request, with the time since when it waits."""
    times = structs.replace(order.times, waiting_since=entry.since)
    return structs.replace(order, times=times).with_part(Evaluation())


LOOKED_AT = 100  # waiting moves whose builds are read at a time, by a query to each of their cells


class WaitingMoves:
    """Evaluates waiting moves."""

    def __init__(self, store: WaitingStore, placing: MovePlacing) -> None:
        self._scheduler = placing.scheduler
        self._store = store
        self._placing = placing
        self.undo_placed: UndoPlaced = placing.undoing.undo_placed
        self._looked_at: set[Id] = set()  # moves read since all waiting moves were last read

    async def evaluate(self, woken: Sequence[Woken]) -> Sequence[Evaluated]:
        batch = [self._course_of(item.queued, item.excluding) for item in woken]
        for requested, found in zip(batch, await self._placing.look_up(batch), strict=True):
            if found is not None:
                requested.take(ComeAgain(LONGEST_PAUSE, LONGEST_PAUSE, found.barred.why))
        await self._placing.begin(batch)
        await self._placing.finish(batch)
        return [self._result(requested) for requested in batch]

    async def end(self, expired: Sequence[Woken]) -> Sequence[Evaluated]:
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
        return [self._result(requested) for requested in batch]

    async def fail(self, woken: Sequence[Woken], why: str) -> Sequence[Evaluated]:
        batch = [self._course_of(item.queued) for item in woken]
        for requested in batch:
            requested.take(Stopped(Barred(code=CRASHED, why=why)))
        await self._placing.finish(batch)
        return [self._result(requested) for requested in batch]

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
        starts = [None if requested.state.end else requested.state.start for requested in batch]
        ends = [_ended(requested) for requested in batch]
        results = [end or RetryLater(0.0, start) for end, start in zip(ends, starts, strict=True)]
        return list(zip(looked_at, results, strict=True))

    def _course_of(
        self, entry: QueuedRequest, excluding: frozenset[str] = frozenset(), waited: float = 0.0
    ) -> RequestedMove:
        assert entry.start is not None
        limit = self._store.held.limit_of(excluding, entry.message.project)
        requested = RequestedMove(
            entry.start.asked,
            narrowed=lambda order: order.limited(limit).with_part(Evaluation()),
            waited=waited,
        )
        requested.take(entry.start)
        return requested

    def _result(self, requested: RequestedMove) -> Evaluated:
        state = requested.state
        if (ended := _ended(requested)) is not None:
            return ended
        if isinstance(state.end, ComeAgain):
            after = self._scheduler.clock.chance.uniform(state.end.least, state.end.most)
            return RetryLater(after, state.start)
        if state.taken is None or state.end is not None:
            return RetryLater(PATIENCE, state.start)
        self._scheduler.retries.end(requested.asked.move)  # a later retry begins a new time limit
        waits = state.taken.state
        if waits.is_explained:
            return StillWaiting(waits.why, decision_of(waits), state.start, waits.wakes_on)
        return RetryLater(SOON, state.start)


def _ended(requested: RequestedMove) -> Ended | None:
    end = requested.state.end
    if isinstance(end, DeadLetterRequest):
        log.error("move %s: %s", requested.asked.move, end.why)
    return None if end is None or isinstance(end, ComeAgain | DeadLetterRequest) else Ended(end)

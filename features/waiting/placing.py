"""Places new and waiting builds and moves, and stores those that must wait for capacity."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from bus.claims import Held, Retired
from bus.context import stored_context
from bus.decisions import Decision
from bus.errors import Poison, Retry
from bus.messages import BuildConflict, BuildPlaced, BuildRequested
from bus.repetitions import conflict, differing
from bus.vocabulary import Id
from features.moves.core.start import Barred, SeenThrough, Stopped
from features.moves.messages import MoveRequested
from features.moves.placing import MoveOutcome, MovePlacing, RequestedMove
from features.waiting.core.waiting_request import with_instances
from features.waiting.messages import CRASHED, wait_of
from features.waiting.reasons import Waits, decision_of, expired_order, waited_for
from features.waiting.results import (
    PATIENCE,
    SOON,
    Ended,
    Evaluated,
    RetryLater,
    StillWaiting,
    UndoPlaced,
    Woken,
)
from features.waiting.store import Marked, Marks, WaitingStore
from features.waiting.tables.queued import QueuedRequest
from scheduler_worker.extension import (
    LONGEST_PAUSE,
    ComeAgain,
    DeadLetterRequest,
    Order,
    PlacingOutcome,
    Scheduler,
    Verdict,
    events,
    log,
    postponed,
)

ENDED_BEFORE = "it has ended before"


class WaitingBuilds:
    """Places new and waiting builds. A request is stored as waiting before anything is published for it."""

    def __init__(self, scheduler: Scheduler, store: WaitingStore) -> None:
        self.scheduler = scheduler
        self.store = store
        self.undo_placed: UndoPlaced = scheduler.ending.undo_placed

    def polls(self, entry: QueuedRequest) -> bool:
        """Return whether a request must be tried again although no event says that it fits."""
        polls = any(fallback.polls(entry.message) for fallback in self.scheduler.fallbacks)
        return polls and entry.start is None

    async def place_many(self, requests: Sequence[BuildRequested]) -> list[PlacingOutcome]:
        """Place new requests or store them as waiting. Return for each its messages, `Retry` or `Poison`."""
        scheduler, store = self.scheduler, self.store
        now, seen = self.scheduler.clock.now(), scheduler.source.seen
        store.queues.settle(self.scheduler.clock.monotonic())
        mark, moved = store.queues.mark, store.marks
        orders = scheduler.begin(requests)
        outcomes: list[PlacingOutcome | None] = list(postponed(orders, scheduler.clock))
        trying: list[int] = []
        waits: list[tuple[int, QueuedRequest, int | None]] = []
        for index, order in enumerate(orders):
            request = order.request
            if outcomes[index] is not None:
                continue
            if (known := store.requests.get(request.request)) is not None:
                outcomes[index] = await self._known(order, known.message)
            elif not order.verdict.invalid and wait_of(request.parts) and store.is_behind(order, now):
                waits.append((index, store.behind(order, now, seen, stored_context(requests[index])), None))
            else:
                trying.append(index)
        ends = await scheduler.place([orders[index] for index in trying])
        for index, end in zip(trying, ends, strict=True):
            order = orders[index]
            if isinstance(end, events.TakenOver):
                context, found = stored_context(requests[index]), end.state
                entry = store.waiting(
                    order, now, seen, found.why, decision_of(found), context, found.wakes_on
                )
                waits.append((index, entry, mark))
            else:
                outcomes[index] = scheduler.outcome(order.request.request, end)
        if store.requests:
            store.on_placed([orders[index] for index in trying if _gives_hosts(outcomes[index])])
        again = await self._store_waiting([(orders[number], entry, at) for number, entry, at in waits], moved)
        for (index, *_), outcome in zip(waits, again, strict=True):
            outcomes[index] = outcome
        messages = [outcome if isinstance(outcome, list | tuple) else () for outcome in outcomes]
        stored = await store.refusals.add_builds(list(zip(requests, messages, strict=True)))
        return [
            outcome if isinstance(outcome, Retry | Poison) else published
            for outcome, published in zip(outcomes, stored, strict=True)
        ]

    async def _known(self, order: Order, first: BuildRequested) -> PlacingOutcome:
        """Return the answer to a repeated request that waits already, as the request `first`."""
        if (refused := _conflict(order, first)) is not None:
            return (refused,)
        # An earlier delivery has stored it, perhaps without publishing the ends of other instances.
        ended = {*order.instances}.difference(first.instances)
        return await self._answer_again(order, ended) if ended else ()

    async def _store_waiting(
        self, waits: Sequence[tuple[Order, QueuedRequest, int | None]], marks: Marks
    ) -> list[PlacingOutcome]:
        """Store requests that must wait; for a redelivered request return its earlier results again."""
        if not waits:
            return []
        asked = [[events.Fence(instance, None, "") for instance in order.instances] for order, *_ in waits]
        before: list[set[Id]] = []
        for answer in await self.scheduler.ending.fence(asked):
            results = answer.results if isinstance(answer, events.FenceAnswers) else ()
            before.append({instance for instance, result in results if isinstance(result, Held | Retired)})
        entries: list[Marked] = []
        again: list[PlacingOutcome] = []
        for (order, entry, mark), elsewhere in zip(waits, before, strict=True):
            again.append(await self._answer_again(order, elsewhere) if elsewhere else ())
            left = tuple(instance for instance in order.instances if instance not in elsewhere)
            if left:
                if elsewhere:  # fewer instances may fit on hosts that were too full for all
                    entry, mark = self._with_instances(order, entry, left), None
                entries.append((entry, mark))
        _, ours = await self.store.add([entry for entry, _ in entries])
        self.store.enter_stored(entries, ours, marks)
        others = {entry.request for entry, _ in entries}.difference(ours)
        stored = await self.store.stored_elsewhere(others) if others else {}
        return [
            self._judged(order, outcome, stored) for (order, *_), outcome in zip(waits, again, strict=True)
        ]

    def _judged(
        self, order: Order, outcome: PlacingOutcome, stored: Mapping[Id, QueuedRequest]
    ) -> PlacingOutcome:
        """Return the outcome of an order that waits, with the refusal if a request with the same id and other
        content waits here or elsewhere (`stored`).
        """
        id_ = order.request.request
        known = self.store.requests.get(id_) or stored.get(id_)
        refused = None if known is None else _conflict(order, known.message)
        return (*outcome, refused) if refused and isinstance(outcome, list | tuple) else outcome

    def _with_instances(self, order: Order, entry: QueuedRequest, left: tuple[Id, ...]) -> QueuedRequest:
        message, fitting = with_instances(entry.message, left), self.store.fitting
        kind = fitting.kind(message, order.alternatives, message.project)
        return replace(entry, message=message, kind=kind, wakes=fitting.wakes(kind))

    async def _answer_again(self, order: Order, elsewhere: set[Id]) -> PlacingOutcome:
        instances = tuple(instance for instance in order.instances if instance in elsewhere)
        again = structs.replace(order, instances=instances, verdict=Verdict(reason=ENDED_BEFORE))
        [end] = await self.scheduler.place([again])
        return self.scheduler.outcome(order.request.request, end)

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
            structs.replace(_waiting_since(order, entry), verdict=Verdict(reason=ENDED_BEFORE))
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
            _waiting_since(order.limited(limit_of(item.excluding, order.request.project)), item.queued)
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


def _conflict(order: Order, first: BuildRequested) -> BuildConflict | None:
    """Return the refusal of a request if the request `first`, which waits, has other content."""
    if not (fields := differing(first, order.request)):
        return None
    return conflict(first.request, first.instances, fields, order.request.reply_to)


def _waiting_since(order: Order, entry: QueuedRequest) -> Order:
    return structs.replace(order, times=structs.replace(order.times, waiting_since=entry.since))


def _gives_hosts(outcome: PlacingOutcome | None) -> bool:
    return isinstance(outcome, list | tuple) and any(isinstance(each, BuildPlaced) for each in outcome)


LOOKED_AT = 100  # waiting moves whose builds are read at a time, by a query to each of their cells


class WaitingMoves:
    """Begins, refuses or stores new moves, and evaluates waiting moves again."""

    def __init__(self, store: WaitingStore, placing: MovePlacing) -> None:
        self._scheduler = placing.scheduler
        self._store = store
        self._placing = placing
        self.undo_placed: UndoPlaced = placing.undoing.undo_placed
        self._looked_at: set[Id] = set()  # moves read since all waiting moves were last read

    async def place_many(self, requests: Sequence[MoveRequested]) -> list[MoveOutcome]:
        """Begin, refuse or store new moves. Return for each its messages, `Retry` or `Poison`."""
        store = self._store
        batch = [RequestedMove(request) for request in requests]
        for requested in batch:
            if requested.asked.move in store.requests:  # the move waits already: nothing is published
                requested.take(SeenThrough())
        store.queues.settle(self._scheduler.clock.monotonic())
        now, seen = self._scheduler.clock.now(), self._scheduler.source.seen
        mark, moved = store.queues.mark, store.marks

        def aside(requested: RequestedMove, order: Order) -> bool:
            requested.behind = bool(wait_of(requested.asked.parts)) and store.is_behind(order, now)
            return requested.behind

        def entry(requested: RequestedMove) -> QueuedRequest:
            assert requested.order is not None
            context, taken = stored_context(requested.asked), requested.state.taken
            if taken is None:
                return store.behind(requested.order, now, seen, context)
            waits = taken.state
            decision = decision_of(waits)
            return store.waiting(requested.order, now, seen, waits.why, decision, context, waits.wakes_on)

        async def store_waiting(waiting: Sequence[RequestedMove]) -> None:
            await self._placing.came_before(waiting)
            keeping = [(requested, entry(requested)) for requested in waiting if requested.state.begins]
            if not keeping:
                return
            first, ours = await store.add([request for _, request in keeping])
            stored: list[Marked] = []
            for requested, request in keeping:
                other = first[requested.asked.build]
                if other != request.request:
                    why = f"another move of it waits for room: {other}"
                    requested.take(Stopped(Barred(code="moving", why=why)))
                    continue
                requested.take(SeenThrough())
                stored.append((request, None if requested.behind else mark))
            store.enter_stored(stored, ours, moved)

        return await self._placing.place_new(batch, aside, store_waiting)

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
        requested = RequestedMove(entry.start.asked, limit=limit, waited=waited)
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

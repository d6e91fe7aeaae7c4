"""Begins new and waiting moves, and stores moves that must wait for capacity."""

from collections.abc import Sequence

from bus.context import stored_context
from bus.vocabulary import Id
from features.moves.core.start import Barred
from features.moves.core.state import SeenThrough, Stopped
from features.moves.messages import MoveRequested
from features.moves.placing import MoveOutcome, MovePlacing, RequestedMove
from features.waiting.messages import CRASHED, wait_of
from features.waiting.reasons import decision_of, expired_order, waited_for
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
from features.waiting.store import Marked, WaitingStore
from features.waiting.tables.parked import ParkedRequest
from scheduler_worker.extension import LONGEST_PAUSE, ComeAgain, DeadLetterRequest, Order, log

LOOKED_AT = 100  # waiting moves whose builds are read at a time, by a query to each of their cells


class WaitingMoves:
    """Begins, refuses or stores new moves, and evaluates waiting moves again."""

    def __init__(self, store: WaitingStore, courses: MovePlacing) -> None:
        self._scheduler = courses.scheduler
        self._store = store
        self._courses = courses
        self.undo_placed: UndoPlaced = courses.undoing.undo_placed
        self._looked_at: set[Id] = set()  # moves read since all waiting moves were last read

    async def place_many(self, requests: Sequence[MoveRequested]) -> list[MoveOutcome]:
        """Begin, refuse or store new moves. Return for each its messages, `Retry` or `Poison`."""
        store = self._store
        courses = [RequestedMove(request) for request in requests]
        for course in courses:
            if course.asked.move in store.requests:  # the move waits already: nothing is published
                course.take(SeenThrough())
        store.queues.settle(self._scheduler.clock.monotonic())
        now, seen = self._scheduler.clock.now(), self._scheduler.source.seen
        mark, moved = store.queues.mark, store.marks

        def aside(course: RequestedMove, order: Order) -> bool:
            course.behind = bool(wait_of(course.asked.parts)) and store.is_behind(order, now)
            return course.behind

        def entry(course: RequestedMove) -> ParkedRequest:
            assert course.order is not None
            context, taken = stored_context(course.asked), course.state.taken
            if taken is None:
                return store.behind(course.order, now, seen, context)
            waits = taken.state
            decision = decision_of(waits)
            return store.waiting(course.order, now, seen, waits.why, decision, context, waits.wakes_on)

        async def park(waiting: Sequence[RequestedMove]) -> None:
            await self._courses.came_before(waiting)
            entries = [(course, entry(course)) for course in waiting if course.state.begins]
            if not entries:
                return
            first, ours = await store.add([request for _, request in entries])
            stored: list[Marked] = []
            for course, request in entries:
                other = first[course.asked.build]
                if other != request.request:
                    why = f"another move of it waits for room: {other}"
                    course.take(Stopped(Barred(code="moving", why=why)))
                    continue
                course.take(SeenThrough())
                stored.append((request, None if course.behind else mark))
            store.enter_stored(stored, ours, moved)

        return await self._courses.place_new(courses, aside, park)

    async def evaluate(self, woken: Sequence[Woken]) -> Sequence[Evaluated]:
        courses = [self._course_of(item.parked, item.excluding) for item in woken]
        for course, found in zip(courses, await self._courses.look_up(courses), strict=True):
            if found is not None:
                course.take(ComeAgain(LONGEST_PAUSE, LONGEST_PAUSE, found.barred.why))
        await self._courses.begin(courses)
        await self._courses.finish(courses)
        return [self._result(course) for course in courses]

    async def end(self, expired: Sequence[Woken]) -> Sequence[Evaluated]:
        now = self._scheduler.clock.now()
        courses = [
            self._course_of(item.parked, item.excluding, waited=max(now - item.parked.since, 0.0))
            for item in expired
        ]
        unknown = await self._courses.look_up(courses)
        for course, item, found in zip(courses, expired, unknown, strict=True):
            if found is not None:
                why = waited_for(item.parked, found.barred.why)
                course.take(Stopped(Barred(code="waited", why=why)))
        await self._courses.begin(courses)
        ending = [
            (course, expired_order(course.order, item.parked, course.state.taken.state))
            for course, item in zip(courses, expired, strict=True)
            if course.state.taken is not None and course.order is not None and course.state.begins
        ]
        await self._courses.place(ending)
        await self._courses.finish(courses)
        return [self._result(course) for course in courses]

    async def fail(self, woken: Sequence[Woken], why: str) -> Sequence[Evaluated]:
        courses = [self._course_of(item.parked) for item in woken]
        for course in courses:
            course.take(Stopped(Barred(code=CRASHED, why=why)))
        await self._courses.finish(courses)
        return [self._result(course) for course in courses]

    async def recheck(self, waiting: Sequence[ParkedRequest]) -> Sequence[tuple[ParkedRequest, Evaluated]]:
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
        courses = [self._course_of(entry) for entry in looked_at]
        await self._courses.look_up(courses)
        unsure = [course for course in courses if course.asked.move in self._store.unsure]
        await self._courses.came_before([course for course in unsure if course.state.begins])
        await self._courses.finish(courses)
        starts = [None if course.state.end else course.state.start for course in courses]
        ends = [_ended(course) for course in courses]
        results = [end or RetryLater(0.0, start) for end, start in zip(ends, starts, strict=True)]
        return list(zip(looked_at, results, strict=True))

    def _course_of(
        self, entry: ParkedRequest, excluding: frozenset[str] = frozenset(), waited: float = 0.0
    ) -> RequestedMove:
        assert entry.start is not None
        limit = self._store.held.limit_of(excluding, entry.message.project)
        course = RequestedMove(entry.start.asked, limit=limit, waited=waited)
        course.take(entry.start)
        return course

    def _result(self, course: RequestedMove) -> Evaluated:
        state = course.state
        if (ended := _ended(course)) is not None:
            return ended
        if isinstance(state.end, ComeAgain):
            after = self._scheduler.clock.chance.uniform(state.end.least, state.end.most)
            return RetryLater(after, state.start)
        if state.taken is None or state.end is not None:
            return RetryLater(PATIENCE, state.start)
        self._scheduler.retries.end(course.asked.move)  # a later retry begins a new time limit
        waits = state.taken.state
        if waits.is_explained:
            return StillWaiting(waits.why, decision_of(waits), state.start, waits.wakes_on)
        return RetryLater(SOON, state.start)


def _ended(course: RequestedMove) -> Ended | None:
    end = course.state.end
    if isinstance(end, DeadLetterRequest):
        log.error("move %s: %s", course.asked.move, end.why)
    return None if end is None or isinstance(end, ComeAgain | DeadLetterRequest) else Ended(end)

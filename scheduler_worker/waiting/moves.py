"""New and waiting moves: begun, refused, or stored if they may wait for capacity; undone without a conductor.

While a move waits, the instance may have moved, changed, begun another move, or been deleted: some of the
waiting moves are looked up every second.
"""

from collections.abc import Sequence

from bus.context import story_of
from bus.moves import MovePlaced, MoveRequested
from bus.vocabulary import Id, Message
from scheduler_worker.core.events import Begun, ComeAgain, DeadLetterRequest
from scheduler_worker.core.move_start import Barred
from scheduler_worker.core.move_state import SeenThrough, Stopped
from scheduler_worker.core.order import Order
from scheduler_worker.core.placing import LONGEST_PAUSE
from scheduler_worker.dependencies import log
from scheduler_worker.move_courses import MoveCourse, MoveCourses, MoveVerdict
from scheduler_worker.store.parked import ParkedRequest
from scheduler_worker.waiting.builds import decision_of, given_up, waited_for
from scheduler_worker.waiting.queue import PATIENCE, SOON, Ended, Evaluated, RetryLater, StillWaiting, Woken
from scheduler_worker.waiting.store import Marked, WaitingStore

LOOKED_AT = 100  # waiting moves per lookup: a query to each of their cells


class WaitingMoves:
    """New moves, which begin, are refused or stored to wait, and the evaluation of waiting moves."""

    def __init__(self, store: WaitingStore, courses: MoveCourses) -> None:
        self._scheduler = courses.scheduler
        self._store = store
        self._courses = courses
        self._looked_at: set[Id] = set()  # moves looked up in this round

    async def place_many(self, requests: Sequence[MoveRequested]) -> list[MoveVerdict]:
        """Return a verdict for each request: begun, refused, or waiting."""
        store = self._store
        courses = [MoveCourse(request) for request in requests]
        for course in courses:
            if course.asked.move in store.room:  # nothing is published for a move that waits already
                course.take(SeenThrough())
        store.room.settle(self._scheduler.clock.monotonic())
        now, seen = self._scheduler.clock.now(), self._scheduler.source.seen
        mark, regroupings = store.room.mark, store.regroupings

        def aside(course: MoveCourse, order: Order) -> bool:
            course.behind = bool(course.asked.wait) and store.is_behind(order, now)
            return course.behind

        def kept(course: MoveCourse) -> ParkedRequest:
            assert course.order is not None
            story, park = story_of(course.asked), course.state.park
            if park is None:
                return store.behind(course.order, now, seen, story)
            return store.waiting(course.order, now, seen, park.why, decision_of(park), story)

        async def park(waiting: Sequence[MoveCourse]) -> None:
            await self._courses.came_before(waiting)
            keeping = [(course, kept(course)) for course in waiting if course.state.begins]
            if not keeping:
                return
            first, ours = await store.add([request for _, request in keeping])
            stored: list[Marked] = []
            for course, request in keeping:
                other = first[course.asked.build]
                if other != request.request:
                    why = f"another move of it waits for room: {other}"
                    course.take(Stopped(Barred(code="moving", why=why)))
                    continue
                course.take(SeenThrough())
                stored.append((request, None if course.behind else mark))
            store.enter_stored(stored, ours, regroupings)

        return await self._courses.place_new(courses, aside, park)

    async def evaluate(self, woken: Sequence[Woken]) -> Sequence[Evaluated]:
        courses = [self._course_of(one.kept, one.excluding) for one in woken]
        for course, look in zip(courses, await self._courses.look(courses), strict=True):
            if look is not None:
                course.take(ComeAgain(LONGEST_PAUSE, LONGEST_PAUSE, look.barred.why))
        await self._courses.begin(courses)
        await self._courses.finish(courses)
        return [self._result(course) for course in courses]

    async def end(self, expired: Sequence[Woken]) -> Sequence[Evaluated]:
        now = self._scheduler.clock.now()
        courses = [
            self._course_of(one.kept, one.excluding, waited=max(now - one.kept.since, 0.0)) for one in expired
        ]
        unknown = await self._courses.look(courses)
        for course, one, look in zip(courses, expired, unknown, strict=True):
            if look is not None:
                why = waited_for(one.kept, look.barred.why)
                course.take(Stopped(Barred(code="waited", why=why)))
        await self._courses.begin(courses)
        ending = [
            (course, (given_up(course.order, one.kept, course.state.park), Begun()))
            for course, one in zip(courses, expired, strict=True)
            if course.state.park is not None and course.order is not None and course.state.begins
        ]
        await self._courses.place(ending)
        await self._courses.finish(courses)
        return [self._result(course) for course in courses]

    async def recheck(self, waiting: Sequence[ParkedRequest]) -> Sequence[tuple[ParkedRequest, Evaluated]]:
        """Read the instances of some waiting moves again; all moves in turn."""
        new = [kept for kept in waiting if kept.request not in self._looked_at]
        if len(new) <= LOOKED_AT:
            self._looked_at.difference_update(kept.request for kept in waiting)
        looked_at = new[:LOOKED_AT] or waiting[:LOOKED_AT]
        self._looked_at.update(kept.request for kept in looked_at)
        if not looked_at:
            return ()
        courses = [self._course_of(kept) for kept in looked_at]
        await self._courses.look(courses)
        await self._courses.finish(courses)
        results: list[tuple[ParkedRequest, Evaluated]] = []
        for kept, course in zip(looked_at, courses, strict=True):
            ended = _ended(course)
            results.append((kept, ended or RetryLater(0.0, None if course.state.end else course.state.start)))
        return results

    async def take_back(self, message: Message) -> Message | None:
        assert isinstance(message, MovePlaced)
        return await self._courses.take_back(message)

    def _course_of(
        self, kept: ParkedRequest, excluding: frozenset[str] = frozenset(), waited: float = 0.0
    ) -> MoveCourse:
        assert kept.start is not None
        course = MoveCourse(
            kept.start.asked, excluding=excluding, why_reserved=self._store.why_reserved, waited=waited
        )
        course.take(kept.start)
        return course

    def _result(self, course: MoveCourse) -> Evaluated:
        state = course.state
        if (ended := _ended(course)) is not None:
            return ended
        if isinstance(state.end, ComeAgain):
            after = self._scheduler.clock.chance.uniform(state.end.least, state.end.most)
            return RetryLater(after, state.start)
        if state.park is None or state.end is not None:
            return RetryLater(PATIENCE, state.start)
        self._scheduler.retries.end(course.asked.move)  # the obstacle has passed
        if state.park.shorts:
            return StillWaiting(state.park.why, decision_of(state.park), state.start)
        return RetryLater(SOON, state.start)


def _ended(course: MoveCourse) -> Ended | None:
    end = course.state.end
    if isinstance(end, DeadLetterRequest):
        log.error("move %s: %s", course.asked.move, end.why)
    return None if end is None or isinstance(end, ComeAgain | DeadLetterRequest) else Ended(end)

"""New and waiting moves: begun, refused, or stored if they may wait for capacity; undone without a conductor.

While a move waits, the instance may have moved, changed, begun another move, or been deleted: some of the
waiting moves are looked up every second.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bus.claims import (
    Claimed,
    ClaimRequested,
    ClaimResult,
    Held,
    NothingHeld,
    Refused,
    Released,
    ReleaseRequested,
    ReleaseResult,
    Retired,
)
from bus.clock import Clock
from bus.context import story_of
from bus.errors import Poison, Retry
from bus.moves import HandoverProgress, MovePlaced, MoveRefused, MoveRequested
from bus.sql.failures import retrying
from bus.vocabulary import Id, Message
from scheduler_worker.core.events import Begun
from scheduler_worker.core.move_start import Barred, refused, taken_back, undoing, unheard
from scheduler_worker.core.order import Order
from scheduler_worker.core.placing import LONGEST_PAUSE
from scheduler_worker.handovers import Handovers
from scheduler_worker.move_courses import MoveCourse, MoveCourses, MoveVerdict
from scheduler_worker.placing import Scheduler
from scheduler_worker.releasing import log
from scheduler_worker.store import parked
from scheduler_worker.store.parked import ParkedRequest
from scheduler_worker.waiting.builds import decision_of, given_up, waited_for
from scheduler_worker.waiting.queue import PATIENCE, SOON, Ended, Evaluated, RetryLater, StillWaiting, Woken
from scheduler_worker.waiting.store import WaitingStore


class UnheardMoves:
    def __init__(self, courses: MoveCourses, handovers: Handovers) -> None:
        self._courses = courses
        self._handovers = handovers

    async def take_back(self, placed: MovePlaced | HandoverProgress) -> MoveRefused | None:
        """Handle a move without a conductor: retry for a limited time, then undo its claim."""
        if isinstance(placed, HandoverProgress):
            return await self._never_left(placed)
        self._courses.scheduler.ending.wait_for_ears(placed.move, placed.cell)
        match await self._undo(placed):
            case Released() | Claimed() | Retired():
                pass
            case Held():
                return None  # its cell goes on with it
            case Refused(refusals=refusals) if any(isinstance(refusal, NothingHeld) for refusal in refusals):
                return None
            case _:
                raise Retry(after=LONGEST_PAUSE, why=f"the claim of {placed.build} is contended")
        why = unheard(placed.cell)
        log.warning("move %s: %s", placed.move, why)
        return MoveRefused(
            move=placed.move,
            build=placed.build,
            kind=placed.kind,
            reason=why,
            code="no_conductor",
            decision=placed.decision,
            reply_to=placed.reply_to,
        )

    async def _never_left(self, told: HandoverProgress) -> MoveRefused | None:
        if not await self._handovers.unheard(told):
            return None
        asked = MoveRequested(move=told.move, build=told.build, kind=told.kind, reply_to=told.reply_to)
        return refused(asked, unheard(told.cell), "no_conductor", told.decision)

    async def _undo(self, placed: MovePlaced) -> ClaimResult | ReleaseResult:
        """Undo the claim, once for all schedulers."""
        claim = undoing(placed)
        if claim is None:
            question = ReleaseRequested(
                consumer=taken_back(placed.move),
                generation=None,
                retire=unheard(placed.cell),
                unplaceable=True,
            )
            return (await self._courses.scheduler.placement.release(question)).result
        [answer] = await self._courses.scheduler.placement.claim_many([ClaimRequested(claims=(claim,))])
        result = answer.results[0]
        if placed.kind == "unshelve" and isinstance(result, Claimed | Retired):
            await self._courses.asleep_again(placed.build, placed.cell)
        return result


LOOKED_AT = 100  # waiting moves per lookup: a query to each of their cells

_Others = dict[Id, Id]  # build → the move of it that waits
_Add = Callable[[Sequence[ParkedRequest]], Awaitable[tuple[_Others, set[Id]]]]


class NewMoves:
    """Stores new moves that may wait for capacity."""

    def __init__(self, scheduler: Scheduler, store: WaitingStore, courses: MoveCourses, clock: Clock) -> None:
        self.store = store
        self.courses = courses
        self._scheduler = scheduler
        self._clock = clock
        patiently: Callable[[_Add], _Add] = retrying(clock)
        self.add = patiently(self._add_once)

    def arriving(self, courses: Sequence[MoveCourse]) -> "ArrivingMoves":
        """Return the batch; nothing is published for moves that wait already."""
        room = self.store.room
        for course in courses:
            if course.asked.move in room:
                course.verdict = ()
        room.settle(self._clock.monotonic())
        seen = self._scheduler.source.seen
        return ArrivingMoves(self, self._clock.now(), seen, room.mark, self.store.regroupings)

    async def _add_once(self, keeping: Sequence[ParkedRequest]) -> tuple[_Others, set[Id]]:
        first = {build_of(kept): kept.request for kept in reversed(keeping)}
        async with self.store.database.write() as tx:
            await self.store.live(tx)
            waits = await parked.one_of_each(tx, first)
            mine = [kept for kept in keeping if waits[build_of(kept)] == kept.request]
            return waits, await parked.add(tx, self.store.name, mine)


@dataclass(frozen=True, slots=True)
class ArrivingMoves:
    """A batch of new moves, and the state of the queues when it was received."""

    new: NewMoves
    now: float
    seen: int
    mark: int
    regroupings: int

    def aside(self, course: MoveCourse, order: Order) -> bool:
        """Return whether the search is skipped, because earlier requests of the class wait."""
        course.behind = bool(course.asked.wait) and self.new.store.is_behind(order, self.now)
        return course.behind

    async def park(self, courses: Sequence[MoveCourse]) -> None:
        """Store the moves, unless one is stored already; a repeated one is answered again."""
        await self.new.courses.came_before(courses)
        keeping = [(course, self._kept(course)) for course in courses if course.begins]
        if not keeping:
            return
        waits, ours = await self.new.add([kept for _, kept in keeping])
        stored: list[tuple[ParkedRequest, int | None]] = []
        for course, kept in keeping:
            first = waits[build_of(kept)]
            if first != kept.request:
                course.barred = Barred(code="moving", why=f"another move of it waits for room: {first}")
                continue
            course.verdict = ()
            stored.append((kept, None if course.behind else self.mark))
        self.new.store.enter_stored(stored, ours, self.regroupings)

    def _kept(self, course: MoveCourse) -> ParkedRequest:
        assert course.order is not None
        store, story = self.new.store, story_of(course.asked)
        if course.park is None:
            return store.behind(course.order, self.now, self.seen, story)
        park = course.park
        return store.waiting(course.order, self.now, self.seen, park.why, decision_of(park), story)


class WaitingMoves:
    """Evaluates waiting moves of one cell at a time."""

    def __init__(
        self, scheduler: Scheduler, store: WaitingStore, courses: MoveCourses, unheard: UnheardMoves
    ) -> None:
        self._scheduler = scheduler
        self._store = store
        self._courses = courses
        self._unheard = unheard
        self._looked_at: set[Id] = set()  # moves looked up in this round

    async def evaluate(self, woken: Sequence[Woken]) -> Sequence[Evaluated]:
        courses = [self._course_of(one) for one in woken]
        unknown = await self._courses.look(courses)
        for course, look in zip(courses, unknown, strict=True):
            if look is not None:
                course.verdict = Retry(LONGEST_PAUSE, look.barred.why)
        await self._courses.begin(courses)
        await self._courses.finish(courses)
        return [self._result(course) for course in courses]

    async def end(self, expired: Sequence[Woken]) -> Sequence[Evaluated]:
        courses, now = [self._course_of(one) for one in expired], self._scheduler.clock.now()
        for course, one in zip(courses, expired, strict=True):
            course.waited = max(now - one.kept.since, 0.0)
        unknown = await self._courses.look(courses)
        for course, one, look in zip(courses, expired, unknown, strict=True):
            if look is not None:
                course.barred = Barred(code="waited", why=waited_for(one.kept, look.barred.why))
        await self._courses.begin(courses)
        ending = [
            (course, (given_up(course.order, one.kept, course.park), Begun()))
            for course, one in zip(courses, expired, strict=True)
            if course.park is not None and course.order is not None and course.begins
        ]
        for course, _ in ending:
            course.park = None
        await self._courses.place(ending)
        await self._courses.finish(courses)
        return [self._result(course) for course in courses]

    async def recheck(self, waiting: Sequence[ParkedRequest]) -> Sequence[tuple[ParkedRequest, Evaluated]]:
        """Look up some moves; all moves in turn."""
        new = [kept for kept in waiting if kept.request not in self._looked_at]
        if len(new) <= LOOKED_AT:
            self._looked_at.difference_update(kept.request for kept in waiting)
        looked_at = new[:LOOKED_AT] or waiting[:LOOKED_AT]
        self._looked_at.update(kept.request for kept in looked_at)
        if not looked_at:
            return ()
        courses = [MoveCourse(kept.start.asked, start=kept.start) for kept in looked_at if kept.start]
        await self._courses.look(courses)
        await self._courses.finish(courses)
        results: list[tuple[ParkedRequest, Evaluated]] = []
        for kept, course in zip(looked_at, courses, strict=True):
            messages = said_of(course)
            start = course.start if course.verdict is None else None
            results.append((kept, RetryLater(0.0, start) if messages is None else Ended(messages)))
        return results

    async def take_back(self, message: Message) -> Message | None:
        assert isinstance(message, MovePlaced)
        return await self._unheard.take_back(message)

    def _course_of(self, woken: Woken) -> MoveCourse:
        start = woken.kept.start
        assert start is not None
        return MoveCourse(
            start.asked, start=start, beside=woken.excluding, why_reserved=self._store.why_reserved
        )

    def _result(self, course: MoveCourse) -> Evaluated:
        messages = said_of(course)
        if messages is not None:
            return Ended(messages)
        park = course.park
        if park is None or course.verdict is not None:
            after = course.verdict.after if isinstance(course.verdict, Retry) else PATIENCE
            return RetryLater(after, course.start)
        self._scheduler.retries.end(course.asked.move)  # the obstacle has passed
        if park.shorts:
            return StillWaiting(park.why, decision_of(park), course.start)
        return RetryLater(SOON, course.start)


def build_of(kept: ParkedRequest) -> Id:
    assert kept.start is not None
    return kept.start.asked.build


def said_of(course: MoveCourse) -> Sequence[Message] | None:
    """Return the messages of a move that ends, or None if it keeps waiting."""
    if isinstance(course.verdict, Poison):
        log.error("move %s: %s", course.asked.move, course.verdict)
    return None if course.verdict is None or isinstance(course.verdict, Retry | Poison) else course.verdict


class ParksMoves(Protocol):
    """Stores moves of a batch that may wait for capacity."""

    def aside(self, course: MoveCourse, order: Order) -> bool:
        """Return whether the search is skipped, because earlier requests of the class wait."""

    async def park(self, courses: Sequence[MoveCourse]) -> None: ...


# New moves; nothing is published for moves that wait already
Parks = Callable[[Sequence[MoveCourse]], ParksMoves]


class MoveArrivals:
    """Handles `move.requested`."""

    def __init__(self, courses: MoveCourses, parks: Parks) -> None:
        self.courses = courses
        self._parks = parks

    async def place_many(self, requests: Sequence[MoveRequested]) -> list[MoveVerdict]:
        """Return a verdict for each request: begun, refused, or waiting."""
        courses = [MoveCourse(request) for request in requests]
        arriving = self._parks(courses)
        new = [course for course in courses if course.verdict is None]
        unknown = await self.courses.look(new)
        for course, look in zip(new, unknown, strict=True):
            if look is not None:
                self.courses.not_yet(course, look)
        await self.courses.begin(new, arriving.aside)
        await arriving.park([course for course in new if course.park is not None or course.behind])
        await self.courses.finish(new)
        return [self.courses.settled(course) for course in courses]

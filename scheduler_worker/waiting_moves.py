"""Moves that wait for capacity: stored with their host request, and looked up again before anything is done.

In the meantime the instance may have moved, changed, begun another move, or been deleted: it is looked up at
every evaluation, and some of the waiting moves every second. Cells are handled separately, because a cell
may not answer for some time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from bus.clock import Clock
from bus.context import story_of
from bus.errors import Poison, Retry, Unavailable
from bus.moves import MovePlaced, MoveRefused
from bus.sql.retrying import retrying
from bus.vocabulary import Id, Message
from scheduler_worker.core.events import Begun, ComeAgain
from scheduler_worker.core.move_start import Barred, MoveStart
from scheduler_worker.core.order import Order
from scheduler_worker.core.placing import LONGEST_PAUSE
from scheduler_worker.core.waiting_queue import Turn
from scheduler_worker.move_arrivals import MoveArrivals
from scheduler_worker.move_courses import MoveCourse
from scheduler_worker.new_waiting import Newcomers
from scheduler_worker.releasing import log
from scheduler_worker.store import parked
from scheduler_worker.store.parked import ParkedRequest
from scheduler_worker.waiting_requests import PATIENCE, Parking, decision_of, given_up, waited_for

LOOKED_AT = 100  # waiting moves per lookup: a query to each of their cells


@dataclass(slots=True)
class _ToDo:
    """Pending work for the moves of one cell."""

    turns: list[Turn] = field(default_factory=list)
    over: dict[Id, ParkedRequest] = field(default_factory=dict)
    look: bool = False


_Others = dict[Id, Id]  # build → the move of it that waits
_Add = Callable[[Sequence[ParkedRequest]], Awaitable[tuple[_Others, set[Id]]]]


class WaitingMoves:
    """The moves among the waiting requests."""

    def __init__(self, parking: Parking, arrivals: MoveArrivals, clock: Clock) -> None:
        self.parking = parking
        self.arrivals = arrivals
        self.clock = clock
        self.newcomers = Newcomers(parking)
        patiently: Callable[[_Add], _Add] = retrying(clock)
        self.add = patiently(self._add_once)
        self._looked_at: set[Id] = set()  # moves looked up in this round
        self._to_do: dict[str, _ToDo] = {}
        self._at: dict[str, _ToDo] = {}  # cells that are being asked
        self._stirred = asyncio.Event()
        parking.moves = self
        arrivals.parks = self.arriving

    # New moves

    def arriving(self, courses: Sequence[MoveCourse]) -> "ArrivingMoves":
        room = self.parking.room
        for course in courses:
            if course.asked.move in room:
                course.verdict = ()
        room.settle(self.clock.monotonic())
        source = self.parking.scheduler.source
        return ArrivingMoves(self, self.clock.now(), source.seen, room.mark, self.parking.told_apart)

    async def _add_once(self, keeping: Sequence[ParkedRequest]) -> tuple[_Others, set[Id]]:
        """Store only the first move of each instance."""
        first = {build_of(kept): kept.request for kept in reversed(keeping)}
        async with self.parking.database.write() as tx:
            await self.parking.live(tx)
            waits = await parked.one_of_each(tx, first)
            mine = [kept for kept in keeping if waits[build_of(kept)] == kept.request]
            return waits, await parked.add(tx, self.parking.name, mine)

    # What there is to do, cell by cell

    def try_(self, turns: Sequence[Turn]) -> None:
        """Evaluate woken moves; they are on trial until they end or wait again."""
        for turn in turns:
            self._of(self.parking.parked[turn.waiter.request]).turns.append(turn)

    def end_waits(self, over: Sequence[ParkedRequest]) -> None:
        """End expired moves."""
        for kept in over:
            if not self.ending(kept):
                self._of(kept).over[kept.request] = kept

    def look_round(self) -> None:
        """Look up where waiting moves begin."""
        for kept in self.parking.parked.values():
            if kept.start is not None:
                self._of(kept).look = True

    def ending(self, kept: ParkedRequest) -> bool:
        """Is it seen to that its wait ends?"""
        return any(kept.request in do.over for do in (*self._to_do.values(), *self._at.values()))

    def _of(self, kept: ParkedRequest) -> _ToDo:
        self._stirred.set()
        return self._to_do.setdefault(kept.message.cell, _ToDo())

    async def run(self) -> None:
        """Evaluate moves until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._stirred.wait()
                self._stirred.clear()
                for cell in [one for one in self._to_do if one not in self._at]:
                    self._at[cell] = self._to_do.pop(cell)
                    group.create_task(self._do(cell, self._at[cell]))

    async def _do(self, cell: str, to_do: _ToDo) -> None:
        try:
            await self._try_turns(to_do.turns)
            await self._end_waits(list(to_do.over.values()))
            if to_do.look:
                await self._look_round(cell)
        except Unavailable as away:
            log.warning("moves that wait: %s", away)
            await asyncio.sleep(PATIENCE)
        except Exception:
            log.exception("moves that wait: a bug; they go on waiting")
            await asyncio.sleep(PATIENCE)
        finally:
            del self._at[cell]
            self._stirred.set()
            self.parking.call()

    # Woken and expired moves

    async def _try_turns(self, turns: Sequence[Turn]) -> None:
        turns = [turn for turn in turns if turn.waiter.request in self.parking.parked]
        if not turns:
            return
        room, seen = self.parking.room, self.parking.scheduler.source.seen
        calling = [self.parking.parked[turn.waiter.request] for turn in turns]
        courses = [course_of(kept) for kept in calling]
        try:
            for course, turn in zip(courses, turns, strict=True):
                course.beside, course.why_reserved = turn.beside, self.parking.why_reserved
            await self._look(courses)
            await self.arrivals.courses.begin(courses)
            await self._finish(courses)
        except BaseException:
            for turn in turns:
                room.back(turn.waiter.request, self.clock.monotonic() + PATIENCE)
            raise
        for turn, kept, course in zip(turns, calling, courses, strict=True):
            if turn.forgotten and any(isinstance(message, MovePlaced) for message in said_of(course) or ()):
                self.parking.rescue(kept)
        await self._become(calling, courses, seen)

    async def _end_waits(self, over: Sequence[ParkedRequest]) -> None:
        """End expired moves: a last evaluation, fence, then publish the reason."""
        over = [kept for kept in over if kept.request in self.parking.parked]
        if not over:
            return
        courses, now = [course_of(kept) for kept in over], self.clock.now()
        for course, kept in zip(courses, over, strict=True):
            course.beside = self.parking.room.barred(kept.priority, kept.since)
            course.why_reserved = self.parking.why_reserved
            course.waited = max(now - kept.since, 0.0)
        unknown = await self.arrivals.courses.look(courses)
        for course, kept, look in zip(courses, over, unknown, strict=True):
            if look is not None:
                course.barred = Barred(code="waited", why=waited_for(kept, look.barred.why))
        await self.arrivals.courses.begin(courses)
        ending = [
            (course, (given_up(course.order, kept, course.park), Begun()))
            for course, kept in zip(courses, over, strict=True)
            if course.park is not None and course.order is not None and course.begins
        ]
        for course, _ in ending:
            course.park = None
        await self.arrivals.courses.place(ending)
        await self._finish(courses)
        said = [(kept, said_of(course)) for kept, course in zip(over, courses, strict=True)]
        await self.parking.tell([(kept, messages) for kept, messages in said if messages is not None])
        self.parking.end_later([kept for kept, messages in said if messages is None])

    async def take_back(self, placed: MovePlaced) -> MoveRefused | None:
        return await self.arrivals.take_back(placed)

    # Waiting moves

    async def _look_round(self, cell: str) -> None:
        """Look up some moves; all moves in turn."""
        waiting = [
            kept
            for kept in self.parking.parked.values()
            if kept.start is not None and kept.message.cell == cell
        ]
        new = [kept for kept in waiting if kept.request not in self._looked_at]
        if len(new) <= LOOKED_AT:
            self._looked_at.difference_update(kept.request for kept in waiting)
        looked_at = new[:LOOKED_AT] or waiting[:LOOKED_AT]
        self._looked_at.update(kept.request for kept in looked_at)
        if not looked_at:
            return
        courses = [course_of(kept) for kept in looked_at]
        seen = self.parking.scheduler.source.seen
        await self._look(courses, later=False)
        await self._finish(courses)
        ended = [(kept, said_of(course)) for kept, course in zip(looked_at, courses, strict=True)]
        await self.parking.tell([(kept, messages) for kept, messages in ended if messages is not None])
        changed = [
            (kept, course.start)
            for kept, course in zip(looked_at, courses, strict=True)
            if course.verdict is None and course.start is not None
        ]
        await self._begin_elsewhere(changed, seen)

    # What becomes of them

    async def _look(self, courses: Sequence[MoveCourse], *, later: bool = True) -> None:
        """Look up the moves; those without an answer keep waiting."""
        unknown = await self.arrivals.courses.look(courses)
        for course, look in zip(courses, unknown, strict=True):
            if look is not None and later:
                course.verdict = Retry(LONGEST_PAUSE, look.barred.why)

    async def _finish(self, courses: Sequence[MoveCourse]) -> None:
        await self.arrivals.courses.finish(courses)
        await self.arrivals.keep(courses)

    async def _become(
        self, calling: Sequence[ParkedRequest], courses: Sequence[MoveCourse], seen: int
    ) -> None:
        parking = self.parking
        lacking: list[ParkedRequest] = []
        changed: list[tuple[ParkedRequest, MoveStart]] = []
        said: list[tuple[ParkedRequest, Sequence[Message]]] = []
        for kept, course in zip(calling, courses, strict=True):
            messages = said_of(course)
            if messages is not None:
                said.append((kept, messages))
                continue
            if course.park is not None and course.verdict is None:
                parking.scheduler.waiting.over(kept.request)  # what stood in the way has passed
                lacking += parking.waits_on(kept, course.park, seen)
            else:
                after = course.verdict.after if isinstance(course.verdict, Retry) else PATIENCE
                lacking += parking.waits_on(kept, ComeAgain(after, after, ""), seen)
            if course.start is not None:
                changed.append((parking.parked.get(kept.request, kept), course.start))
        await parking.lacking(lacking)
        await self._begin_elsewhere(changed, seen)
        await parking.tell(said)

    async def _begin_elsewhere(self, looked_at: Sequence[tuple[ParkedRequest, MoveStart]], seen: int) -> None:
        """Store the new beginning of moves whose instance has changed, and compute their class again."""
        parking = self.parking
        others = []
        for kept, start in looked_at:
            if start == kept.start or kept.request not in parking.parked:
                continue
            parking.take_over(replace(kept, start=start, message=start.request(), seen=seen))
            others.append(parking.parked[kept.request])
        await parking.lacking(others)
        if others:
            parking.call()


@dataclass(frozen=True, slots=True)
class ArrivingMoves:
    """A batch of them, and what was known when it came."""

    waiting: WaitingMoves
    now: float
    seen: int
    mark: int
    told_apart: int

    def aside(self, course: MoveCourse, order: Order) -> bool:
        """Return whether the search is skipped, because earlier requests of the class wait."""
        course.behind = bool(course.asked.wait) and self.waiting.newcomers.others_first(order, self.now)
        return course.behind

    async def park(self, courses: Sequence[MoveCourse]) -> None:
        """Store the moves, unless one is stored already; a repeated one is answered again.

        The grouping key can change between evaluation and storage, so it is computed again before storing.
        """
        await self.waiting.arrivals.courses.came_before(courses)
        keeping = [(course, self._kept(course)) for course in courses if course.begins]
        if not keeping:
            return
        parking = self.waiting.parking
        waits, ours = await self.waiting.add([kept for _, kept in keeping])
        for course, kept in keeping:
            first = waits[build_of(kept)]
            if first != kept.request:
                why = f"another move of it waits for room: {first}"
                course.barred = Barred(code="moving", why=why)
                continue
            course.verdict = ()
            if kept.request not in ours or kept.request in parking.room:
                continue
            if self.told_apart == parking.told_apart:
                parking.enter(kept, None if course.behind else self.mark)
            else:
                parking.take_over(kept)
        parking.call()

    def _kept(self, course: MoveCourse) -> ParkedRequest:
        assert course.order is not None
        newcomers, story = self.waiting.newcomers, story_of(course.asked)
        if course.park is None:
            return newcomers.behind_others(course.order, self.now, self.seen, story)
        park = course.park
        return newcomers.kept(course.order, self.now, self.seen, park.why, decision_of(park), story)


def course_of(kept: ParkedRequest) -> MoveCourse:
    assert kept.start is not None
    return MoveCourse(kept.start.asked, start=kept.start)


def build_of(kept: ParkedRequest) -> Id:
    assert kept.start is not None
    return kept.start.asked.build


def said_of(course: MoveCourse) -> Sequence[Message] | None:
    """Return the messages of a move that ends, or None if it keeps waiting."""
    if isinstance(course.verdict, Poison):
        log.error("move %s: %s", course.asked.move, course.verdict)
    return None if course.verdict is None or isinstance(course.verdict, Retry | Poison) else course.verdict

"""The course of a move until it begins or is refused: lookup, choice, fencing, repetition.

A move begins with one claim under its id or, without a claim, by retiring that id: so it begins once, with
any number of schedulers and deliveries. If it has begun and its cell does not know it, it is published again
from the existing allocations.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from msgspec import structs

from bus.claims import Held, Released, ReleaseRequested, ReleaseResult, Retired
from bus.errors import Poison, Retry
from bus.messages import BuildRequested
from bus.moves import BEGUN, SHELVED, HandoverProgress, MovePlaced, MoveRefused, MoveRequested
from bus.vocabulary import MAX_CAUSE, Contended, Id
from scheduler_worker.core.events import Begun, BegunBefore, End, Park, SayMove
from scheduler_worker.core.fitting import unfit
from scheduler_worker.core.handover import Handover, begins, handover
from scheduler_worker.core.move_start import Barred, MoveStart, refused, taken_back, unheard
from scheduler_worker.core.order import CANCELLED, DELETED, Order
from scheduler_worker.core.placing import LONGEST_PAUSE, SOON
from scheduler_worker.dependencies import together
from scheduler_worker.handovers import Handovers
from scheduler_worker.move_lookups import MoveLookups, NotYet, SeenThrough, Stopped
from scheduler_worker.placing import Scheduler
from scheduler_worker.waiting.hosts import beside

MoveVerdict = Sequence[MovePlaced | MoveRefused | HandoverProgress] | Retry | Poison


# Why moves were refused, and what each asked of hosts, as far as that is known
RefusedMoves = Sequence[tuple[MoveRequested, BuildRequested | None, MoveRefused]]
KeepRefusals = Callable[[RefusedMoves], Awaitable[None]]


@dataclass(slots=True, eq=False)
class MoveCourse:
    """One of a batch."""

    asked: MoveRequested
    start: MoveStart | None = None
    barred: Barred | None = None
    again: bool = False  # it has begun before
    verdict: MoveVerdict | None = None
    beside: Collection[str] = ()  # roots that are reserved for others
    why_reserved: Callable[[str], str] = str  # the reason for reserving one of the roots
    waited: float = 0.0  # seconds it has waited, if this is its last evaluation
    order: Order | None = None
    park: Park | None = None  # there is no room for it now, and it may wait for some
    behind: bool = False  # the search was skipped: earlier requests of the class wait

    @property
    def begins(self) -> bool:
        """May it still, as far as is known?"""
        return self.verdict is None and self.barred is None and not self.again


Aside = Callable[[MoveCourse, Order], bool]  # whether the search is skipped


class MoveCourses:
    """The steps for a batch of moves."""

    def __init__(
        self,
        scheduler: Scheduler,
        lookups: MoveLookups,
        handovers: Handovers,
        keep_refusals: KeepRefusals,
    ) -> None:
        self.scheduler = scheduler
        self._lookups = lookups
        self._handovers = handovers
        self._keep_refusals = keep_refusals

    async def look(self, courses: Sequence[MoveCourse]) -> list[NotYet | None]:
        """Look up where each move begins; return what to publish if a missing answer lasts."""
        await self._handed_over_before(courses)
        open_ = [course for course in courses if course.verdict is None]
        looks = iter(await self._lookups.look([course.asked for course in open_]))
        unknown: list[NotYet | None] = []
        for course in courses:
            look = None if course.verdict is not None else next(looks)
            match look:
                case MoveStart():
                    course.start = look
                case SeenThrough():
                    course.verdict = ()
                case Stopped(barred=barred, start=start):
                    course.barred, course.start = barred, start or course.start
            unknown.append(look if isinstance(look, NotYet) else None)
        return unknown

    def not_yet(self, course: MoveCourse, look: NotYet) -> None:
        waited = self.scheduler.retries.retried_for(course.asked.move)
        if waited >= self.scheduler.unheard_for:
            course.barred, course.start = look.barred, look.start
        else:
            course.verdict = self._later(course.asked.move, look.barred.why)

    async def begin(self, courses: Sequence[MoveCourse], aside: Aside | None = None) -> None:
        """Begin the permitted moves."""
        await self._seek(
            [course for course in courses if course.begins and course.start and course.start.seeks], aside
        )
        await self._stay(
            [course for course in courses if course.begins and course.start and not course.start.seeks]
        )

    async def finish(self, courses: Sequence[MoveCourse]) -> None:
        """Determine the messages of moves that were refused or had begun before, and store the refusals."""
        await self._refuse([course for course in courses if course.barred is not None])
        await self._tell_again([course for course in courses if course.again])
        await self._hand_over(courses)
        await self._keep_refusals(
            [
                (course.asked, course.start.request() if course.start is not None else None, message)
                for course in courses
                if isinstance(course.verdict, tuple | list)
                for message in course.verdict
                if isinstance(message, MoveRefused)
            ]
        )

    def settled(self, course: MoveCourse) -> MoveVerdict:
        if course.verdict is None:
            return self._later(course.asked.move, "nobody knows what became of it")
        if not isinstance(course.verdict, Retry):
            self.scheduler.retries.end(course.asked.move)
        return course.verdict

    def _later(self, move: Id, why: str) -> Retry:
        retries = self.scheduler.retries
        calm = retries.retried_for(move) > LONGEST_PAUSE
        retries.begin(move)
        return Retry(after=LONGEST_PAUSE if calm else self.scheduler.clock.chance.uniform(*SOON), why=why)

    # Moves that need a host

    async def _seek(self, courses: Sequence[MoveCourse], aside: Aside | None) -> None:
        begun = self._begun(courses)
        later = self.scheduler.put_off([order for order, _ in begun])
        trying = []
        for course, (order, event), late in zip(courses, begun, later, strict=True):
            course.order = order
            if late is not None:
                course.verdict = late
            elif event.refusal or aside is None or not aside(course, order):
                order = structs.replace(order, waited=max(order.waited, course.waited))
                trying.append((course, (beside(order, course.beside, course.why_reserved), event)))
        await self.place(trying)

    async def place(self, trying: Sequence[tuple[MoveCourse, tuple[Order, Begun]]]) -> None:
        if trying:
            ends = await self.scheduler.place([one for _, one in trying])
            for (course, _), end in zip(trying, ends, strict=True):
                self._end(course, end)

    def _begun(self, courses: Sequence[MoveCourse]) -> list[tuple[Order, Begun]]:
        return self.scheduler.begin_moves([course.start for course in courses if course.start is not None])

    def _end(self, course: MoveCourse, end: End) -> None:
        match end:
            case SayMove(message=message):
                course.verdict = (message,)
            case BegunBefore():
                course.again = True
            case Park() if course.order is not None:
                course.park = end
            case _:
                verdict = self.scheduler.verdict(course.asked.move, end)
                course.verdict = verdict if isinstance(verdict, Retry | Poison) else ()

    # Moves to another cell

    async def _handed_over_before(self, courses: Sequence[MoveCourse]) -> None:
        crossing = [course for course in courses if course.asked.to_cell]
        if not crossing:
            return
        known = await self._handovers.known([course.asked.move for course in crossing])
        for course in crossing:
            order = known.get(course.asked.move)
            if order is not None:
                course.verdict = begins(order)

    async def _hand_over(self, courses: Sequence[MoveCourse]) -> None:
        """Store the handover of a move to another cell before anything is published."""
        crossing: list[tuple[MoveCourse, Handover]] = []
        for course in courses:
            start, said = course.start, course.verdict
            if start is None or start.booted is None or not isinstance(said, tuple | list) or not said:
                continue
            if isinstance(said[0], MovePlaced) and said[0].cell != start.cell:
                crossing.append((course, handover(start, said[0], start.booted)))
        if crossing:
            kept = await self._handovers.keep([order for _, order in crossing])
            for course, order in crossing:
                course.verdict = begins(kept.get(order.placed.move, order))

    # Moves without a destination

    async def _stay(self, courses: Sequence[MoveCourse]) -> None:
        if not courses:
            return
        await self.check_rebuilds([course for course in courses if course.asked.kind == "rebuild"])
        ready = [course for course in courses if course.barred is None]
        results = await together(
            [self._retire(course.asked.move, BEGUN, unplaceable=False) for course in ready]
        )
        for course, result in zip(ready, results, strict=True):
            match result:
                case Released() if course.start is not None:
                    course.verdict = (course.start.stays(),)
                case Retired(why=why):
                    self._retired(course, why)
                case _:
                    course.verdict = self._later(course.asked.move, "its name is contended")

    async def check_rebuilds(self, courses: Sequence[MoveCourse]) -> None:
        """Bar rebuilds whose present host does not fit the new image."""
        scheduler = self.scheduler
        sources = [course.start.source.root for course in courses if course.start and course.start.source]
        if any(scheduler.source.position(root) is None for root in sources):
            await scheduler.source.fresh()
        if not courses:
            return
        now, _ = scheduler.hosts_now()
        for course, (order, event) in zip(courses, self._begun(courses), strict=True):
            if event.refusal:
                course.barred = Barred(code="unreadable", why=event.refusal)
                continue
            [root] = order.alternatives[0].own
            fits = [
                unfit(alternative, root, scheduler.source, now, scheduler.policy)
                for alternative in order.alternatives
            ]
            if all(fits):
                host = course.start.source.host if course.start and course.start.source else root
                course.barred = Barred(
                    code="image", why=f"{host}, where it is, does not do for it: {fits[0]}"
                )

    # Refused moves

    async def _refuse(self, courses: Sequence[MoveCourse]) -> None:
        """Fence the refused moves first, so that no concurrent delivery begins them."""
        barred = [(course, course.barred) for course in courses if course.barred is not None]
        results = await together(
            [self._retire(course.asked.move, one.why, unplaceable=True) for course, one in barred]
        )
        for (course, one), result in zip(barred, results, strict=True):
            match result:
                case Released():
                    course.verdict = (refused(course.asked, one.why, one.code),)
                case Retired(why=why):
                    self._retired(course, why)
                case Held():
                    why = "move: it is the id of somebody who holds something himself"
                    course.verdict = (refused(course.asked, why, "unreadable"),)
                case _:
                    course.verdict = self._later(course.asked.move, "its name is contended")

    async def came_before(self, courses: Sequence[MoveCourse]) -> None:
        """Answer moves again that were answered before; they do not wait."""
        results = await together(
            [self._retire(course.asked.move, "", unplaceable=False) for course in courses]
        )
        for course, result in zip(courses, results, strict=True):
            if isinstance(result, Retired):
                self._retired(course, result.why)

    def _retired(self, course: MoveCourse, why: str) -> None:
        """Publish the result of a move that has begun or was refused."""
        if why == BEGUN:
            course.again = True
            return
        code = "cancelled" if why in (CANCELLED, DELETED) else ""
        if course.barred is not None and course.barred.why[:MAX_CAUSE] == why:
            code = course.barred.code
        course.verdict = (refused(course.asked, why, code),)

    async def _retire(self, name: Id, why: str, *, unplaceable: bool) -> ReleaseResult:
        question = ReleaseRequested(
            consumer=name, generation=None, retire=why[:MAX_CAUSE], unplaceable=unplaceable and bool(why)
        )
        return (await self.scheduler.placement.release(question)).result

    # Moves that had begun

    async def _tell_again(self, courses: Sequence[MoveCourse]) -> None:
        """Publish moves again whose scheduler may have stopped, unless their cell knows them."""
        known = [(course, course.start) for course in courses if course.start is not None]
        for course in courses:
            if course.start is None:
                await self._wait_for_its_cell(course)
        undone = await together(
            [self._retire(taken_back(course.asked.move), "", unplaceable=False) for course, _ in known]
        )
        going: list[tuple[MoveCourse, MoveStart]] = []
        for (course, start), result in zip(known, undone, strict=True):
            if isinstance(result, Retired):
                if course.asked.kind == "unshelve":  # the scheduler that undid it may have stopped halfway
                    await self.asleep_again(course.asked.build, start.cell)
                course.verdict = (refused(course.asked, unheard(start.cell), "no_conductor"),)
            elif start.seeks:
                going.append((course, start))
            else:
                course.verdict = (start.stays(),)
        if going:
            await self._tell_what_is_held(going)

    async def _wait_for_its_cell(self, course: MoveCourse) -> None:
        """Handle a build that its cell does not know; without allocations it has ended."""
        asked = course.asked
        waited = self.scheduler.retries.retried_for(asked.move)
        if waited < self.scheduler.unheard_for and await self._lookups.held([asked.build]):
            course.verdict = self._later(asked.move, "it has begun, and its cell does not know of its build")
        else:
            course.verdict = ()

    async def _tell_what_is_held(self, going: Sequence[tuple[MoveCourse, MoveStart]]) -> None:
        consumers = [one for _, start in going for one in (start.asked.build, start.keep) if one]
        held = await self._lookups.held(consumers)
        telling: list[tuple[MoveCourse, tuple[Order, Begun]]] = []
        begun = self.scheduler.begin_moves([start for _, start in going])
        for (course, start), (order, _) in zip(going, begun, strict=True):
            there = held.get(start.asked.build)
            if there is None or (start.keep and start.keep not in held):
                course.verdict = ()  # its cell has consumed it in the meantime
                continue
            request = order.request
            if (
                not order.alternatives
            ):  # it is no longer readable, for example because a named host was deleted
                request = structs.replace(request, alternates=0)
            order = structs.replace(order, request=request, instances=(), held=((start.asked.move, there),))
            telling.append((course, (order, Begun())))
        await self.place(telling)

    async def asleep_again(self, build: Id, cell: str) -> None:
        """Shelve the instance again; a newer move that has begun, or an end, is left unchanged."""
        question = ReleaseRequested(consumer=build, generation=None, retire=SHELVED, cell=cell)
        if isinstance((await self.scheduler.placement.release(question)).result, Contended):
            raise Retry(after=LONGEST_PAUSE, why=f"the claim of {build} is contended")

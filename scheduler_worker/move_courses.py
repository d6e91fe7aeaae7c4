"""Moves on their way to where they begin, or to why they do not: looked up, placed, fenced, told again.

A move begins with one claim under its own name, or, where it needs none, by retiring that name: so it begins
once, however often and by however many schedulers it is read. Whoever finds that it has begun, and that its
cell does not know of it, tells the cell again from what is held.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from msgspec import structs

from bus.claims import Held, ReleaseAnswered, Released, ReleaseRequested, ReleaseResult, Retired
from bus.errors import Poison, Retry
from bus.moves import BEGUN, SHELVED, HandoverTold, MovePlaced, MoveRefused, MoveRequested
from bus.not_done import Contended
from bus.protocol import Ask
from bus.vocabulary import Id
from scheduler_worker.at_once import together
from scheduler_worker.core.events import Begun, BegunBefore, End, Park, SayMove
from scheduler_worker.core.handover import Handover, begins, handover
from scheduler_worker.core.move_start import MAX_REASON, Barred, MoveStart, refused, taken_back, unheard
from scheduler_worker.core.order import CANCELLED, DELETED, Order
from scheduler_worker.core.placing import LONGEST_PAUSE, SOON
from scheduler_worker.core.rebuilding import unfit
from scheduler_worker.ending import UNHEARD_SECONDS
from scheduler_worker.handovers import Handovers
from scheduler_worker.move_lookups import MoveLookups, NotYet, SeenThrough, Stopped
from scheduler_worker.placing import Scheduler
from scheduler_worker.sight import beside

MoveVerdict = Sequence[MovePlaced | MoveRefused | HandoverTold] | Retry | Poison


@dataclass(slots=True, eq=False)
class MoveCourse:
    """One of a batch."""

    asked: MoveRequested
    start: MoveStart | None = None
    barred: Barred | None = None
    again: bool = False  # it has begun before
    verdict: MoveVerdict | None = None
    beside: Collection[str] = ()  # roots that are reserved for others
    why_reserved: Callable[[str], str] = str  # of one of these roots
    waited: float = 0.0  # so long, and this is its last look
    order: Order | None = None
    park: Park | None = None  # there is no room for it now, and it may wait for some
    behind: bool = False  # nor was any looked for: others that ask for the same came before

    @property
    def begins(self) -> bool:
        """May it still, as far as is known?"""
        return self.verdict is None and self.barred is None and not self.again


Aside = Callable[[MoveCourse, Order], bool]  # no host is looked for now


class MoveCourses:
    """What is done for all of a batch together."""

    def __init__(
        self,
        scheduler: Scheduler,
        lookups: MoveLookups,
        release: Ask[ReleaseRequested, ReleaseAnswered],
        handovers: Handovers | None = None,
        *,
        unheard_for: float = UNHEARD_SECONDS,
    ) -> None:
        self.scheduler = scheduler
        self._lookups = lookups
        self._release = release
        self._handovers = handovers
        self._unheard_for = unheard_for

    async def look(self, courses: Sequence[MoveCourse], *, waits: bool) -> list[NotYet | None]:
        """Where each would begin; of those that cannot be told of now, what to say if that lasts."""
        await self._handed_over_before(courses)
        open_ = [one for one in courses if one.verdict is None]
        crosses = self._handovers is not None
        looks = iter(await self._lookups.look([one.asked for one in open_], waits=waits, crosses=crosses))
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
        waited = self.scheduler.waiting.waited(course.asked.move)
        if waited >= self._unheard_for:
            course.barred, course.start = look.barred, look.start
        else:
            course.verdict = self._later(course.asked.move, look.barred.why)

    async def begin(self, courses: Sequence[MoveCourse], aside: Aside | None = None) -> None:
        """Those that may."""
        await self._seek([one for one in courses if one.begins and one.start and one.start.seeks], aside)
        await self._stay([one for one in courses if one.begins and one.start and not one.start.seeks])

    async def finish(self, courses: Sequence[MoveCourse]) -> None:
        """What is to be said of those that do not begin, and of those that had begun before."""
        await self._refuse([one for one in courses if one.barred is not None])
        await self._tell_again([one for one in courses if one.again])
        await self._hand_over(courses)

    def settled(self, course: MoveCourse) -> MoveVerdict:
        if course.verdict is None:
            return self._later(course.asked.move, "nobody knows what became of it")
        if not isinstance(course.verdict, Retry):
            self.scheduler.waiting.over(course.asked.move)
        return course.verdict

    def _later(self, move: Id, why: str) -> Retry:
        waiting = self.scheduler.waiting
        calm = waiting.waited(move) > LONGEST_PAUSE
        waiting.begins(move)
        return Retry(after=LONGEST_PAUSE if calm else self.scheduler.clock.chance.uniform(*SOON), why=why)

    # Those that need a host

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

    # Those that go to another cell

    async def _handed_over_before(self, courses: Sequence[MoveCourse]) -> None:
        """Who has the order goes by it, whatever cells say by now."""
        crossing = [one for one in courses if one.asked.to_cell]
        if self._handovers is None or not crossing:
            return
        known = await self._handovers.known([one.asked.move for one in crossing])
        for course in crossing:
            order = known.get(course.asked.move)
            if order is not None:
                course.verdict = begins(order)

    async def _hand_over(self, courses: Sequence[MoveCourse]) -> None:
        """What has its place in another cell has its order kept before anybody is told."""
        if self._handovers is None:
            return
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

    # Those that stay where they are, or go nowhere

    async def _stay(self, courses: Sequence[MoveCourse]) -> None:
        if not courses:
            return
        await self.check_rebuilds([one for one in courses if one.asked.kind == "rebuild"])
        ready = [one for one in courses if one.barred is None]
        results = await together([self._retire(one.asked.move, BEGUN, unplaceable=False) for one in ready])
        for course, result in zip(ready, results, strict=True):
            match result:
                case Released() if course.start is not None:
                    course.verdict = (course.start.stays(),)
                case Retired(why=why):
                    self._retired(course, why)
                case _:
                    course.verdict = self._later(course.asked.move, "its name is contended")

    async def check_rebuilds(self, courses: Sequence[MoveCourse]) -> None:
        """Does the host it is on do for the image?"""
        scheduler = self.scheduler
        sources = [one.start.source.root for one in courses if one.start and one.start.source]
        if any(scheduler.source.position(root) is None for root in sources):
            await scheduler.source.fresh()
        if not courses:
            return
        now, _ = scheduler.hosts_now()
        for course, (order, event) in zip(courses, self._begun(courses), strict=True):
            if event.refusal:
                course.barred = Barred(code="unreadable", why=event.refusal)
                continue
            [root] = order.wishes[0].own
            fits = [unfit(wish, root, scheduler.source, now, scheduler.policy) for wish in order.wishes]
            if all(fits):
                host = course.start.source.host if course.start and course.start.source else root
                course.barred = Barred(
                    code="image", why=f"{host}, where it is, does not do for it: {fits[0]}"
                )

    # Those that do not begin

    async def _refuse(self, courses: Sequence[MoveCourse]) -> None:
        """They are fenced first: whoever reads the same at this moment does not begin them."""
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
        """Those of which something was said already do not wait: it is said again."""
        results = await together([self._retire(one.asked.move, "", unplaceable=False) for one in courses])
        for course, result in zip(courses, results, strict=True):
            if isinstance(result, Retired):
                self._retired(course, result.why)

    def _retired(self, course: MoveCourse, why: str) -> None:
        """It has begun, or was refused: that is said again."""
        if why == BEGUN:
            course.again = True
            return
        code = "cancelled" if why in (CANCELLED, DELETED) else ""
        if course.barred is not None and course.barred.why[:MAX_REASON] == why:
            code = course.barred.code
        course.verdict = (refused(course.asked, why, code),)

    async def _retire(self, name: Id, why: str, *, unplaceable: bool) -> ReleaseResult:
        """Without a reason nothing is retired: it is only asked for."""
        question = ReleaseRequested(
            consumer=name, generation=None, retire=why[:MAX_REASON], unplaceable=unplaceable and bool(why)
        )
        return (await self._release(question)).result

    # Those that had begun

    async def _tell_again(self, courses: Sequence[MoveCourse]) -> None:
        """Whoever began them may have died before it said so. A cell that knows of one says what it said."""
        known = [(course, course.start) for course in courses if course.start is not None]
        for course in courses:
            if course.start is None:
                await self._wait_for_its_cell(course)
        undone = await together(
            [self._retire(taken_back(one.asked.move), "", unplaceable=False) for one, _ in known]
        )
        going: list[tuple[MoveCourse, MoveStart]] = []
        for (course, start), result in zip(known, undone, strict=True):
            if isinstance(result, Retired):
                if course.asked.kind == "unshelve":  # who undid it may have died in the middle
                    await self.asleep_again(course.asked.build, start.cell)
                course.verdict = (refused(course.asked, unheard(start.cell), "no_conductor"),)
            elif start.seeks:
                going.append((course, start))
            else:
                course.verdict = (start.stays(),)
        if going:
            await self._tell_what_is_held(going)

    async def _wait_for_its_cell(self, course: MoveCourse) -> None:
        """Its cell knows of no such build. Who holds nothing has ended, and all is said of it."""
        asked = course.asked
        waited = self.scheduler.waiting.waited(asked.move)
        if waited < self._unheard_for and await self._lookups.held([asked.build]):
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
                course.verdict = ()  # its cell has heard of it meanwhile, and has gone on
                continue
            request = order.request
            if not order.wishes:  # it cannot be meant any more: a host that it names has gone, say
                request = structs.replace(request, alternates=0)
            order = structs.replace(order, request=request, instances=(), held=((start.asked.move, there),))
            telling.append((course, (order, Begun())))
        await self.place(telling)

    async def asleep_again(self, build: Id, cell: str) -> None:
        """It is shelved as before, and not placed should its boot be read again. Who has woken it since, by
        another move, or ended it, is left alone."""
        question = ReleaseRequested(consumer=build, generation=None, retire=SHELVED, cell=cell)
        if isinstance((await self._release(question)).result, Contended):
            raise Retry(after=LONGEST_PAUSE, why=f"the claim of {build} is contended")

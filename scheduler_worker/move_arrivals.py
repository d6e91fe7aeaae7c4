"""Moves of what is there already: where each begins is looked up, and a host is found for it as for a boot.

A move begins with one claim under its own name, or, where it needs none, by retiring that name: so it begins
once, however often and by however many schedulers it is read. Whoever finds that it has begun, and that its
cell does not know of it, tells the cell again from what is held.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from msgspec import structs

from bus.claims import (
    Claimed,
    ClaimRequested,
    ClaimResult,
    Held,
    NothingHeld,
    Refused,
    ReleaseAnswered,
    Released,
    ReleaseRequested,
    ReleaseResult,
    Retired,
)
from bus.errors import Poison, Retry
from bus.messages import BuildRequested, BuildUnplaceable
from bus.moves import BEGUN, SHELVED, MovePlaced, MoveRefused, MoveRequested
from bus.not_done import Contended
from bus.protocol import Ask
from bus.vocabulary import Id
from scheduler_worker.at_once import together
from scheduler_worker.core.events import Begun, BegunBefore, End, SayMove
from scheduler_worker.core.move_start import (
    MAX_REASON,
    Barred,
    MoveStart,
    refused,
    taken_back,
    undoing,
    unheard,
)
from scheduler_worker.core.order import Order
from scheduler_worker.core.placing import LONGEST_PAUSE, SOON
from scheduler_worker.core.rebuilding import unfit
from scheduler_worker.ending import UNHEARD_SECONDS, log
from scheduler_worker.move_lookups import MoveLookups, NotYet, SeenThrough, Stopped
from scheduler_worker.placing import Claims, Scheduler

MoveVerdict = Sequence[MovePlaced | MoveRefused] | Retry | Poison
KeepDecisions = Callable[[Sequence[tuple[BuildRequested, BuildUnplaceable]]], Awaitable[None]]


@dataclass(slots=True, eq=False)
class _Course:
    """One of a batch."""

    asked: MoveRequested
    start: MoveStart | None = None
    barred: Barred | None = None
    again: bool = False  # it has begun before
    verdict: MoveVerdict | None = None


class MoveArrivals:
    """Hears which moves are asked for."""

    def __init__(
        self,
        scheduler: Scheduler,
        lookups: MoveLookups,
        claim_many: Claims,
        release: Ask[ReleaseRequested, ReleaseAnswered],
        keep_decisions: KeepDecisions | None = None,
        *,
        unheard_for: float = UNHEARD_SECONDS,
    ) -> None:
        self._scheduler = scheduler
        self._lookups = lookups
        self._claim_many = claim_many
        self._release = release
        self._keep_decisions = keep_decisions
        self._unheard_for = unheard_for

    async def place_many(self, requests: Sequence[MoveRequested]) -> list[MoveVerdict]:
        """A place for each of these, or why it does not move."""
        courses = [_Course(one) for one in requests]
        for course, look in zip(courses, await self._lookups.look(requests, waits=False), strict=True):
            match look:
                case MoveStart():
                    course.start = look
                case SeenThrough():
                    course.verdict = ()
                case Stopped(barred=barred, start=start):
                    course.barred, course.start = barred, start
                case NotYet():
                    self._not_yet(course, look)
        await self._seek([one for one in courses if _begins(one) and one.start and one.start.seeks])
        await self._stay([one for one in courses if _begins(one) and one.start and not one.start.seeks])
        await self._refuse([one for one in courses if one.barred is not None])
        await self._tell_again([one for one in courses if one.again])
        await self._keep(courses)
        return [self._settled(course) for course in courses]

    def _not_yet(self, course: _Course, look: NotYet) -> None:
        waited = self._scheduler.waiting.waited(course.asked.move)
        if waited >= self._unheard_for:
            course.barred, course.start = look.barred, look.start
        else:
            course.verdict = self._later(course.asked.move, look.barred.why)

    def _later(self, move: Id, why: str) -> Retry:
        waiting = self._scheduler.waiting
        calm = waiting.waited(move) > LONGEST_PAUSE
        waiting.begins(move)
        return Retry(after=LONGEST_PAUSE if calm else self._scheduler.clock.chance.uniform(*SOON), why=why)

    def _settled(self, course: _Course) -> MoveVerdict:
        if course.verdict is None:
            return self._later(course.asked.move, "nobody knows what became of it")
        if not isinstance(course.verdict, Retry):
            self._scheduler.waiting.over(course.asked.move)
        return course.verdict

    # Those that need a host

    async def _seek(self, courses: Sequence[_Course]) -> None:
        begun = self._begun(courses)
        later = self._scheduler.put_off([order for order, _ in begun])
        trying = []
        for course, one, late in zip(courses, begun, later, strict=True):
            if late is None:
                trying.append((course, one))
            else:
                course.verdict = late
        if trying:
            ends = await self._scheduler.place([one for _, one in trying])
            for (course, _), end in zip(trying, ends, strict=True):
                self._end(course, end)

    def _begun(self, courses: Sequence[_Course]) -> list[tuple[Order, Begun]]:
        return self._scheduler.begin_moves([course.start for course in courses if course.start is not None])

    def _end(self, course: _Course, end: End) -> None:
        match end:
            case SayMove(message=message):
                course.verdict = (message,)
            case BegunBefore():
                course.again = True
            case _:
                verdict = self._scheduler.verdict(course.asked.move, end)
                course.verdict = verdict if isinstance(verdict, Retry | Poison) else ()

    # Those that stay where they are, or go nowhere

    async def _stay(self, courses: Sequence[_Course]) -> None:
        if not courses:
            return
        await self._check_rebuilds([one for one in courses if one.asked.kind == "rebuild"])
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

    async def _check_rebuilds(self, courses: Sequence[_Course]) -> None:
        """Does the host it is on do for the image?"""
        scheduler = self._scheduler
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

    async def _refuse(self, courses: Sequence[_Course]) -> None:
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

    def _retired(self, course: _Course, why: str) -> None:
        """It has begun, or was refused: that is said again."""
        if why == BEGUN:
            course.again = True
            return
        again = course.barred is not None and course.barred.why[:MAX_REASON] == why
        course.verdict = (refused(course.asked, why, course.barred.code if again and course.barred else ""),)

    async def _retire(self, name: Id, why: str, *, unplaceable: bool) -> ReleaseResult:
        """Without a reason nothing is retired: it is only asked for."""
        question = ReleaseRequested(
            consumer=name, generation=None, retire=why[:MAX_REASON], unplaceable=unplaceable and bool(why)
        )
        return (await self._release(question)).result

    # Those that had begun

    async def _tell_again(self, courses: Sequence[_Course]) -> None:
        """Whoever began them may have died before it said so. A cell that knows of one says what it said."""
        known = [(course, course.start) for course in courses if course.start is not None]
        for course in courses:
            if course.start is None:
                await self._wait_for_its_cell(course)
        undone = await together(
            [self._retire(taken_back(one.asked.move), "", unplaceable=False) for one, _ in known]
        )
        going: list[tuple[_Course, MoveStart]] = []
        for (course, start), result in zip(known, undone, strict=True):
            if isinstance(result, Retired):
                if course.asked.kind == "unshelve":  # who undid it may have died in the middle
                    await self._asleep_again(course.asked.build, start.cell)
                course.verdict = (refused(course.asked, unheard(start.cell), "no_conductor"),)
            elif start.seeks:
                going.append((course, start))
            else:
                course.verdict = (start.stays(),)
        if going:
            await self._tell_what_is_held(going)

    async def _wait_for_its_cell(self, course: _Course) -> None:
        """Its cell knows of no such build. Who holds nothing has ended, and all is said of it."""
        asked = course.asked
        waited = self._scheduler.waiting.waited(asked.move)
        if waited < self._unheard_for and await self._lookups.held([asked.build]):
            course.verdict = self._later(asked.move, "it has begun, and its cell does not know of its build")
        else:
            course.verdict = ()

    async def _tell_what_is_held(self, going: Sequence[tuple[_Course, MoveStart]]) -> None:
        consumers = [one for _, start in going for one in (start.asked.build, start.keep) if one]
        held = await self._lookups.held(consumers)
        telling: list[tuple[_Course, tuple[Order, Begun]]] = []
        begun = self._scheduler.begin_moves([start for _, start in going])
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
        if telling:
            ends = await self._scheduler.place([one for _, one in telling])
            for (course, _), end in zip(telling, ends, strict=True):
                self._end(course, end)

    # Those that nobody hears of

    async def take_back(self, placed: MovePlaced) -> MoveRefused | None:
        """No conductor hears of it: for some time it comes again, then what it began with is undone."""
        self._scheduler.ending.wait_for_ears(placed.move, placed.cell)
        match await self._undo(placed):
            case Released() | Claimed() | Retired():
                pass
            case Held():
                return None  # its cell goes on with it
            case Refused(refusals=refusals) if any(isinstance(one, NothingHeld) for one in refusals):
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

    async def _undo(self, placed: MovePlaced) -> ClaimResult | ReleaseResult:
        """Once, and for all who would."""
        claim = undoing(placed)
        if claim is None:
            return await self._retire(taken_back(placed.move), unheard(placed.cell), unplaceable=True)
        [answer] = await self._claim_many([ClaimRequested(claims=(claim,))])
        result = answer.results[0]
        if placed.kind == "unshelve" and isinstance(result, Claimed | Retired):
            await self._asleep_again(placed.build, placed.cell)
        return result

    async def _asleep_again(self, build: Id, cell: str) -> None:
        """It is shelved as before, and not placed should its boot be read again. Who has woken it since, by
        another move, or ended it, is left alone."""
        question = ReleaseRequested(consumer=build, generation=None, retire=SHELVED, cell=cell)
        if isinstance((await self._release(question)).result, Contended):
            raise Retry(after=LONGEST_PAUSE, why=f"the claim of {build} is contended")

    # Why they were refused, for whoever asks later

    async def _keep(self, courses: Sequence[_Course]) -> None:
        if self._keep_decisions is None:
            return
        ended = []
        for course in courses:
            said = course.verdict if isinstance(course.verdict, tuple | list) else ()
            for one in said:
                if isinstance(one, MoveRefused) and course.start is not None:
                    ended.append((course.start.request(), _as_unplaceable(one)))
        await self._keep_decisions(ended)


def _begins(course: _Course) -> bool:
    return course.verdict is None and course.barred is None


def _as_unplaceable(said: MoveRefused) -> BuildUnplaceable:
    return BuildUnplaceable(
        request=said.move,
        instances=(said.move,),
        reason=said.reason,
        decision=structs.replace(said.decision, code=said.code),
        reply_to=said.reply_to,
    )

"""New requests for moves: reads the state of the instances, finds destinations as for boots, or stores
requests that may wait.
"""

from collections.abc import Awaitable, Callable, Sequence
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
from bus.errors import Retry
from bus.moves import HandoverProgress, MovePlaced, MoveRefused, MoveRequested
from scheduler_worker.core.move_start import refused, taken_back, undoing, unheard
from scheduler_worker.core.order import Order
from scheduler_worker.core.placing import LONGEST_PAUSE
from scheduler_worker.handovers import Handovers
from scheduler_worker.move_courses import MoveCourse, MoveCourses, MoveVerdict
from scheduler_worker.move_lookups import MoveLookups
from scheduler_worker.placing import Scheduler
from scheduler_worker.releasing import log
from scheduler_worker.waiting_requests import RefusedMoves

KeepRefusals = Callable[[RefusedMoves], Awaitable[None]]


class ParksMoves(Protocol):
    """Stores moves of a batch that may wait for capacity."""

    def aside(self, course: MoveCourse, order: Order) -> bool:
        """Return whether the search is skipped, because earlier requests of the class wait."""
        ...

    async def park(self, courses: Sequence[MoveCourse]) -> None: ...


# New moves; nothing is published for moves that wait already
Parks = Callable[[Sequence[MoveCourse]], ParksMoves]


class MoveArrivals:
    """Handles `move.requested`."""

    def __init__(
        self,
        scheduler: Scheduler,
        lookups: MoveLookups,
        handovers: Handovers,
        keep_refusals: KeepRefusals,
    ) -> None:
        self.courses = MoveCourses(scheduler, lookups, handovers)
        self._handovers = handovers
        self.parks: Parks | None = None
        self._scheduler = scheduler
        self._keep_refusals = keep_refusals

    async def place_many(self, requests: Sequence[MoveRequested]) -> list[MoveVerdict]:
        """Return a verdict for each request: begun, refused, or waiting."""
        courses = [MoveCourse(request) for request in requests]
        parks = self.parks(courses) if self.parks is not None else None
        new = [course for course in courses if course.verdict is None]
        unknown = await self.courses.look(new)
        for course, look in zip(new, unknown, strict=True):
            if look is not None:
                self.courses.not_yet(course, look)
        await self.courses.begin(new, None if parks is None else parks.aside)
        if parks is not None:
            await parks.park([course for course in new if course.park is not None or course.behind])
        await self.courses.finish(new)
        await self.keep(new)
        return [self.courses.settled(course) for course in courses]

    async def keep(self, courses: Sequence[MoveCourse]) -> None:
        """Store the refusals for later queries."""
        ended = []
        for course in courses:
            said = course.verdict if isinstance(course.verdict, tuple | list) else ()
            request = course.start.request() if course.start is not None else None
            ended += [(course.asked, request, one) for one in said if isinstance(one, MoveRefused)]
        if ended:
            await self._keep_refusals(ended)

    # Moves without a conductor

    async def take_back(self, placed: MovePlaced | HandoverProgress) -> MoveRefused | None:
        """Handle a move without a conductor: retry for a limited time, then undo its claim."""
        if isinstance(placed, HandoverProgress):
            return await self._never_left(placed)
        self._scheduler.ending.wait_for_ears(placed.move, placed.cell)
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
            return (await self._scheduler.placement.release(question)).result
        [answer] = await self._scheduler.placement.claim_many([ClaimRequested(claims=(claim,))])
        result = answer.results[0]
        if placed.kind == "unshelve" and isinstance(result, Claimed | Retired):
            await self.courses.asleep_again(placed.build, placed.cell)
        return result

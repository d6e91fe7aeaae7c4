"""Results of moves without a consumer: retried for a limited time; then the move is undone and refused."""

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
from scheduler_worker.core.placing import LONGEST_PAUSE
from scheduler_worker.handovers import Handovers
from scheduler_worker.move_courses import MoveCourses
from scheduler_worker.releasing import log


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

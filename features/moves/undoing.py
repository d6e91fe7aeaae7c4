"""Undoes moves that have started although their cell has no conductor to carry them out."""

from bus import claims
from bus.claims import Claimed, Held, NothingHeld, Refused, Released, Retired
from bus.errors import Retry
from bus.vocabulary import Contended, Id
from features.moves.core.start import SEEKING, no_conductor_reason, refused, undo_claim_id, undoing
from features.moves.handovers import Handovers
from features.moves.messages import SHELVED, HandoverProgress, MovePlaced, MoveRefused, MoveRequested
from scheduler_worker.extension import LONGEST_PAUSE, Placing, log


class MoveUndoing:
    """Releases the claims of moves whose orders no conductor receives, and makes their refusals."""

    def __init__(self, scheduler: Placing, handovers: Handovers) -> None:
        self._scheduler = scheduler
        self._handovers = handovers

    async def undo_placed(self, placed: MovePlaced | HandoverProgress) -> MoveRefused | None:
        """Raise `Retry` for a started move if its cell has no conductor, until a time limit. Then undo the
        move and return its refusal; return None, and undo nothing, if the cell continues the move.
        """
        move, why, reply_to = placed.move, no_conductor_reason(placed.cell), placed.reply_to
        asked = MoveRequested(move=move, build=placed.build, kind=placed.kind, reply_to=reply_to)
        refusal = refused(asked, why, "no_conductor", placed.decision)
        if isinstance(placed, HandoverProgress):
            return refusal if await self._handovers.on_unroutable(placed) else None
        self._scheduler.ending.wait_for_consumer(placed.move, placed.cell)
        match await self._undo(placed):
            case Released() | Claimed() | Retired():
                log.warning("move %s: %s", placed.move, why)
                return refusal
            case Held():
                return None  # the cell has received the order, and continues the move
            case Refused(refusals=refusals) if any(isinstance(refusal, NothingHeld) for refusal in refusals):
                return None
            case _:
                raise Retry(after=LONGEST_PAUSE, why=f"the claim of {placed.build} is contended")

    async def _undo(self, placed: MovePlaced) -> claims.ClaimResult | claims.ReleaseResult:
        if placed.kind not in SEEKING or placed.generation is None:  # the move made no claim
            return await self._scheduler.ending.retire(
                undo_claim_id(placed.move), no_conductor_reason(placed.cell)
            )
        claim = undoing(placed, placed.generation)
        [answer] = await self._scheduler.placement.claim_many([claims.ClaimRequested(claims=(claim,))])
        result = answer.results[0]
        if placed.kind == "unshelve" and isinstance(result, Claimed | Retired):
            await self.park_again(placed.build, placed.cell)
        return result

    async def park_again(self, build: Id, cell: str) -> None:
        """Mark an instance as shelved in placement after a refused unshelve, unless it has a host by now."""
        question = claims.ReleaseRequested(
            consumer=build, generation=None, retire=SHELVED, cell=cell, revivable=True
        )
        if isinstance((await self._scheduler.placement.release(question)).result, Contended):
            raise Retry(after=LONGEST_PAUSE, why=f"the claim of {build} is contended")

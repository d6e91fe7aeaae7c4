"""Handles messages about moves."""

from collections.abc import Sequence

from bus.claims import ClaimRequested
from bus.errors import Retry, Unavailable
from bus.vocabulary import Contended
from bus.worker import Outcome
from cell_conductor.extension import CellBuilds, Event
from features.moves import cell_store as move_store
from features.moves.core.course import undone_unknown
from features.moves.core.move import MoveImpossible
from features.moves.messages import FindMoves, MovePlaced, MovesFound

METAL = "an instance on bare metal does not move: its node is all of it"


class CellMoves:
    """Handles the moves of one cell."""

    def __init__(self, builds: CellBuilds) -> None:
        self.builds = builds
        self.database = builds.database

    async def place_many(self, placed: Sequence[MovePlaced]) -> Sequence[Outcome]:
        """Begin the moves that the scheduler placed. Return the messages for each; for a move that has ended
        already, its last messages again.
        """
        known = await self.builds.load({move.build for move in placed})
        ever = {build.id for build in known.values() if build.placed is not None}
        strange = [move for move in placed if not move.out_of and move.build not in ever]
        async with self.database.read() as tx:  # moves of builds that were pruned since
            ended = await move_store.ended(tx, {move.move for move in strange})
        metal = await self.builds.on_shared_nodes(known.values())
        undone = [move for move in strange if move.move not in ended]
        later = {move.move: retry for move in undone if (retry := await self._undo(move)) is not None}
        events: list[tuple[str, Event]] = [
            (move.build, MoveImpossible(move, METAL) if move.build in metal else move)
            for move in placed
            if move.move not in later
        ]
        outcomes = iter(await self.builds.apply(events))
        return [later.get(move.move) or next(outcomes) for move in placed]

    async def find(self, question: FindMoves) -> MovesFound:
        async with self.database.read() as tx:
            return await move_store.page(tx, question)

    async def _undo(self, placed: MovePlaced) -> Retry | None:
        question = undone_unknown(placed)
        result: object = None
        try:
            if isinstance(question, ClaimRequested):
                result = (await self.builds.placement.claim_many([question]))[0].results[0]
            elif question is not None:
                result = (await self.builds.placement.release_many([question]))[0].result
        except Unavailable as away:
            return Retry(1.0, f"placement is away: {away}")
        return Retry(0.5, "placement is contended") if isinstance(result, Contended) else None

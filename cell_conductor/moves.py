"""Receives messages about moves of one cell's builds. `builds.py` applies them."""

from collections.abc import Iterable, Sequence

from bus.claims import ClaimRequested, ClaimResult, ReleaseResult
from bus.errors import Retry, Unavailable
from bus.moves import FindMoves, HandoverProgress, MovePlaced, MoveReported, MovesFound, MoveSteered
from bus.vocabulary import Contended
from bus.worker import Outcome
from cell_conductor import moves_store, store
from cell_conductor.applying import MOVE_LATER
from cell_conductor.builds import PAGE, Builds
from cell_conductor.core.build import Build
from cell_conductor.core.events import Event, MoveImpossible
from cell_conductor.core.phases import reminder
from cell_conductor.core.placed_move import undone_unknown, unknown

METAL = "an instance on bare metal does not move: its node is all of it"


class CellMoves:
    """The moves of one cell."""

    def __init__(self, builds: Builds) -> None:
        self.builds = builds
        self.database = builds.database

    async def place_many(self, placed: Sequence[MovePlaced]) -> Sequence[Outcome]:
        """Begin each move; a move that is over repeats its end."""
        async with self.database.read() as tx:
            known = await store.load(tx, {one.build for one in placed})
            strange = [one for one in placed if not one.out_of and unknown(known.get(one.build))]
            over = await moves_store.ended(tx, {placed.move for placed in strange})
        metal = await self._on_metal(known.values())
        undone = [placed for placed in strange if placed.move not in over]
        later = {placed.move: retry for placed in undone if (retry := await self._undo(placed)) is not None}
        events: list[tuple[str, Event]] = [
            (one.build, MoveImpossible(one, METAL) if one.build in metal else one)
            for one in placed
            if one.move not in later
        ]
        outcomes = iter(await self._handle(events))
        return [later.get(one.move) or next(outcomes) for one in placed]

    async def hand_over_many(self, told: Sequence[HandoverProgress]) -> Sequence[Outcome]:
        """Handle orders for moves between cells."""
        async with self.database.read() as tx:
            known = await store.load(tx, {order.build for order in told})
        events: list[tuple[str, Event]] = [(order.build, order) for order in told]
        later = [
            Retry(MOVE_LATER, f"its build is {build.status}")
            if (build := known.get(order.build)) is not None and build.status in ("building", "swapping")
            else None
            for order in told
        ]
        outcomes = iter(
            await self._handle([one for one, wait in zip(events, later, strict=True) if not wait])
        )
        return [wait or next(outcomes) for wait in later]

    async def move_many(self, reports: Sequence[MoveReported]) -> Sequence[Outcome]:
        return await self._handle([(report.build, report) for report in reports])

    async def steer_many(self, steered: Sequence[MoveSteered]) -> Sequence[Outcome]:
        return await self._handle([(move.build, move) for move in steered])

    async def time_out(self) -> Sequence[MoveReported]:
        """Return reminders for phases with silent agents."""
        async with self.database.read() as tx:
            late = await store.overdue_moves(tx, self.builds.clock.now(), PAGE)
        return [reminder(build) for build in late if build.moving is not None]

    async def find(self, question: FindMoves) -> MovesFound:
        async with self.database.read() as tx:
            return await moves_store.page(tx, question)

    async def _undo(self, placed: MovePlaced) -> Retry | None:
        """Undo the claim of a move of an unknown build; what changed since is left alone."""
        question = undone_unknown(placed)
        result: ClaimResult | ReleaseResult | None = None
        try:
            if isinstance(question, ClaimRequested):
                result = (await self.builds.claim_many([question]))[0].results[0]
            elif question is not None:
                result = (await self.builds.release_many([question]))[0].result
        except Unavailable as away:
            return Retry(1.0, f"placement is away: {away}")
        return Retry(0.5, "placement is contended") if isinstance(result, Contended) else None

    async def _on_metal(self, builds: Iterable[Build]) -> set[str]:
        roots = {build.id: build.host.root for build in builds if build.placed is not None}
        if self.builds.ring is None or not roots:
            return set()
        owned = await self.builds.ring.owned(roots.values())
        return {id_ for id_, root in roots.items() if root in owned}

    async def _handle(self, events: Sequence[tuple[str, Event]]) -> Sequence[Outcome]:
        return await self.builds.addressed(await self.builds.handle(events))

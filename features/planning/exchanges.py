"""Undoes exchanges of two instances whose client stopped after the first of the two moves.

A client stores an exchange before its first move, and the ids of all moves follow from the id of the
exchange. So the records of the moves show how far the exchange is, and the client reports nothing else.
Before the first move is undone, the id of the second is fenced. A client that was only slow gets a refusal,
and then requests the undo under the same id as a scheduler.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bus.claims import STARTED, Retired
from bus.clock import Clock
from bus.errors import UNANSWERED
from bus.protocol import Ask
from bus.resources import FindAllocations
from bus.sql.database import Database
from features.moves.core.start import undo_claim_id
from features.moves.messages import FindMoves, MoveRequested, MovesFound, MoveStands
from features.planning import store as stored
from features.planning.core.exchanges import ExchangeAct, MoveResult, next_act
from features.planning.messages import ExchangeGuarded, ExchangePart, GuardExchange
from scheduler_worker.extension import Ending, PlacementQueries, log

CHECK_SECONDS = 2.0  # between two checks of an exchange
STOPPED_SECONDS = 30.0  # between two checks while an operator has stopped rebalancing
PARTS: tuple[ExchangePart, ...] = ("first", "second", "undo")
INTERRUPTED = "its exchange was interrupted: the client did not request it in time"
NOTE = "undoes half of an exchange: its client stopped"


@dataclass(frozen=True)
class ExchangeGuard:
    """Stores exchanges (GuardExchange), and undoes those that were interrupted."""

    database: Database
    placement: PlacementQueries
    find_moves: Ask[FindMoves, MovesFound]
    ending: Ending
    clock: Clock

    async def store(self, asked: GuardExchange) -> ExchangeGuarded:
        async with self.database.write() as tx:
            await stored.add_exchange(tx, asked, self.clock.now())
        return ExchangeGuarded()

    async def step(self) -> Sequence[MoveRequested]:
        """Check the exchanges that are due; return the moves that undo interrupted exchanges. While an
        operator has stopped rebalancing, no move is requested.
        """
        now = self.clock.now()
        async with self.database.read() as tx:
            if not await stored.is_due(tx, now):
                return ()
        async with self.database.write() as tx:
            stopped = await stored.stopped_since(tx) is not None
            due = await stored.take_due(tx, now, now + (STOPPED_SECONDS if stopped else CHECK_SECONDS))
        requests: list[MoveRequested] = []
        for exchange in due:
            try:
                if await self._undoes(exchange) and not stopped:
                    requests.append(exchange.steps[0].request(exchange.move("undo"), "undo", NOTE))
            except UNANSWERED as problem:
                log.warning("exchange %s: %s", exchange.exchange, problem)
        return requests

    async def prune(self, keep: float) -> None:
        async with self.database.write() as tx:
            await stored.prune(tx, self.clock.now() - keep)

    async def _undoes(self, exchange: GuardExchange) -> bool:
        """Execute the next act for an exchange; return whether its first move is to be undone now."""
        act = await self._act(exchange)
        if act == "forget":
            async with self.database.write() as tx:
                await stored.forget(tx, exchange.exchange)
        elif act == "undo":
            async with self.database.write() as tx:
                await stored.mark_half_done(tx, exchange.exchange)
            return await self._is_released(exchange)
        elif act != "wait":
            part: ExchangePart = "first" if act == "fence first" else "second"
            await self.ending.retire(exchange.move(part), INTERRUPTED)
            log.warning("exchange %s: its client did not request the %s move", exchange.exchange, part)
        return False

    async def _act(self, exchange: GuardExchange) -> ExchangeAct:
        ids = {part: exchange.move(part) for part in PARTS}
        question = FindMoves(cell=exchange.steps[0].cell, moves=tuple(ids.values()), limit=len(ids))
        known = {stands.move: stands for stands in (await self.find_moves(question)).moves}
        if not all(stands.ended for stands in known.values()):
            return "wait"
        first, second, undo = [await self._result(ids[part], known.get(ids[part])) for part in PARTS]
        # The first move is overdue at the first check; the second, this time after the end of the first.
        since = known[ids["first"]].ended if ids["first"] in known else 0.0
        return next_act(first, second, undo, overdue=self.clock.now() >= since + exchange.seconds)

    async def _result(self, move: str, stands: MoveStands | None) -> MoveResult:
        """Return the result of a move: of an ended one from the record of its cell (`stands`), else from
        placement.
        """
        if stands is not None:
            return "done" if stands.phase == "done" else "failed"
        match await self.ending.retire(move, "", unplaceable=False):
            case Retired(why=why) if why == STARTED:
                undone = await self.ending.retire(undo_claim_id(move), "", unplaceable=False)
                return "failed" if isinstance(undone, Retired) else "in progress"
            case Retired():
                return "failed"
            case _:
                return "unknown"

    async def _is_released(self, exchange: GuardExchange) -> bool:
        """Return whether the agent has destroyed the guest on the first move's source, which frees the
        capacity to which the instance returns.
        """
        holder = exchange.steps[0].holder
        if not holder:
            return True
        return not (await self.placement.allocations(FindAllocations(consumers=(holder,)))).consumers

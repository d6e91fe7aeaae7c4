"""Moves of a scheduler without a database and without waiting moves."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bus.parts import DecisionParts
from bus.vocabulary import Id
from features.moves.core.handover import Handover
from features.moves.handovers import Handovers
from features.moves.lookups import MoveLookups
from features.moves.messages import FindMoves, MovesFound
from features.moves.placing import MovePlacing, StoreRefusals
from scheduler_worker.extension import CellQueries
from scheduler_worker.testing import Scheduler


async def _unused(question: object) -> Any:
    raise AssertionError(f"unexpected query {question}")


class HandoversInMemory(Handovers):
    """Stores the orders of moves between cells in memory instead of a database."""

    def __init__(self) -> None:
        self.orders: dict[Id, Handover] = {}

    async def known(self, moves: Collection[Id]) -> dict[Id, Handover]:
        return {move: self.orders[move] for move in moves if move in self.orders}

    async def keep(self, orders: Sequence[Handover]) -> dict[Id, Handover]:
        for order in orders:
            self.orders.setdefault(order.placed.move, order)
        return await self.known([order.placed.move for order in orders])


async def _forget(ended: object) -> Mapping[Id, DecisionParts]:
    return {}


async def _no_moves(question: FindMoves) -> MovesFound:
    return MovesFound(moves=())


def moves_of(
    scheduler: Scheduler,
    find: Any,
    handovers: Handovers | None = None,
    keep: StoreRefusals = _forget,
    find_moves: Any = _no_moves,
) -> MovePlacing:
    """Return the moves of a scheduler whose cells answer `find` about their builds."""
    cells = CellQueries(builds=find, instances=_unused)
    lookups = MoveLookups(scheduler.source, scheduler.ending, scheduler.placement, cells, find_moves)
    handovers = handovers or HandoversInMemory()
    return MovePlacing(scheduler, lookups, handovers, keep)

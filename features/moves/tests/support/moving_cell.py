"""A cell whose instances move."""

import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from berth.kit.testing import packages
from bus.claims import Claimed, ClaimRequested, ConsumerClaim, holder_consumer
from bus.clock import Clock
from bus.decisions import Decision, Record
from bus.errors import Retry
from bus.messages import HostFailed
from bus.queries import FindBuilds
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Message
from cell_conductor.extension import AttemptLimits
from cell_conductor.testing import Builds
from features.moves.cell_moves import CellMoves
from features.moves.messages import MoveOrdered, MovePlaced, MoveProgress
from features.moves.tests.support.conductor_moves import a_move, in_short
from tests.support.conductor_builders import (
    CELL,
    FEATURES,
    Books,
    a_build_order,
    a_placed,
    an_agent_report,
    deliver,
)

ONE = a_placed(1, hosts=1)
MOVE = a_move(decision=Decision(considered=3, record=Record(seed="s")))


class MovingCell:
    """A conductor that can be killed, its database, and a placement that records allocations."""

    def __init__(self, database: Database) -> None:
        self.now = 1000.0
        self.database = database
        self.books = Books(ONE)
        self.restart()

    def restart(self) -> None:
        chance = random.Random(1)
        self.builds = Builds(
            self.database,
            self.books.claim_many,
            self.books.release_many,
            limits=AttemptLimits(3, 100.0, 600.0, 5000.0),
            clock=Clock(now=lambda: self.now, chance=chance, monotonic=lambda: self.now),
            **FEATURES,
        )
        self.moves = CellMoves(self.builds)

    async def active(self) -> None:
        await self.builds.start_many([ONE])
        await self.hears(an_agent_report(a_build_order(ONE), "built"))

    def claimed(self, placed: MovePlaced = MOVE) -> MovePlaced:
        assert placed.chosen is not None
        before = self.books.held.get(placed.build)
        claim = ConsumerClaim(
            consumer=placed.build, generation=before.generation if before else None, begins=placed.move,
            choices=(placed.chosen.choice,), keep=holder_consumer(placed.build, placed.attempt),
        )  # fmt: skip
        [claimed] = self.books.claim(ClaimRequested(claims=(claim,))).results
        assert isinstance(claimed, Claimed)
        return replace(placed, generation=claimed.generation)

    async def hears(self, event: Message) -> list[Message] | Retry:
        outcome = await deliver(self.builds, event)
        if isinstance(outcome, Retry):
            return outcome
        assert isinstance(outcome, Sequence)
        return [message for message in outcome if not isinstance(message, MoveProgress | HostFailed)]

    async def came_of(self, event: Message) -> list[Message]:
        outcome = await self.hears(event)
        assert not isinstance(outcome, Retry), outcome
        return outcome

    async def ordered(self, event: Message) -> MoveOrdered:
        (order,) = [message for message in await self.came_of(event) if isinstance(message, MoveOrdered)]
        return order

    async def stands(self) -> Any:
        (build,) = (await self.builds.find(FindBuilds(cell=CELL, builds=(ONE.build,)))).builds
        return build


@pytest.fixture
async def cell() -> AsyncIterator[MovingCell]:
    database = Database("sqlite+aiosqlite://", inline=True)
    yield await a_cell(database)
    await database.close()


async def a_cell(database: Database) -> MovingCell:
    await migrate(database, *packages("conductor"))
    cell = MovingCell(database)
    await cell.active()
    return cell


def short(reply: Sequence[Message]) -> list[str]:
    return [in_short(message) for message in reply]

"""A cell whose agents are removed."""

from collections.abc import Sequence
from typing import Any

import pytest

from berth.features import packages
from bus.messages import AgentReported, HostFailed
from bus.removed_agents import AgentEditRequested
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Message
from bus.worker import Outcome
from cell_conductor import assumed_guests
from cell_conductor.builds import Builds
from cell_conductor.core.events import AttemptLimits
from tests.support.conductor_builders import (
    CELL,
    FEATURES,
    PARTS,
    Books,
    a_build_order,
    a_placed,
    an_agent_report,
    deliver,
)
from tests.support.virtual_time import TurnedClock

ONE = a_placed(1)
FIRST, SECOND = a_build_order(ONE, 1), a_build_order(ONE, 2)
BUILT = an_agent_report(FIRST, "built")
# reports that the conductor sends to itself
REPORTS: tuple[type[Message], ...] = (
    AgentReported,
    *(each.report for part in PARTS for each in part.ended_orders),
)


class RemovingCell:
    """A cell whose conductor receives the reports that it publishes to itself."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.time = TurnedClock()
        self.books = Books()
        self.builds = self.a_conductor()

    def a_conductor(self, **limits: Any) -> Builds:
        limits = {"max_attempts": 3, "build_timeout": 100.0, **limits}
        asks = self.books.claim_many, self.books.release_many
        return Builds(self.database, *asks, limits=AttemptLimits(**limits), clock=self.time.clock, **FEATURES)

    async def edit(self, agent: str, edit: Any) -> int:
        request = AgentEditRequested(cell=CELL, agent=agent, edit=edit)
        return (await self.builds.removed.edit(request, self.builds.sharing)).assumed

    async def remove(self, *agents: str) -> list[Message]:
        """Remove agents; return what the next check of the conductor leads to."""
        for agent in agents:
            await self.edit(agent, "remove")
        return await self.deliver(*await self.builds.end_orders_of_removed())

    async def deliver(self, *messages: Message) -> list[Message]:
        """Deliver messages and the resulting reports to the conductor; return its other messages."""
        waiting, others = list(messages), list[Message]()
        for _ in range(100):
            if not waiting:
                return [each for each in others if not isinstance(each, HostFailed)]
            outcome: Outcome = await deliver(self.builds, waiting.pop(0))
            assert isinstance(outcome, Sequence)
            for message in outcome:
                to = waiting if isinstance(message, REPORTS) else others
                to.append(message)
        raise AssertionError("the conductor answers its own reports for ever")

    async def place(self, *placed: Any) -> list[Message]:
        for message in placed:
            self.books.hold(message)
        return await self.deliver(*placed)

    async def assumed(self) -> list[tuple[str, int, str, str]]:
        guests = await assumed_guests(self.database)
        return [(guest.build, guest.attempt, guest.host, guest.agent) for guest in guests]


@pytest.fixture
async def cell(database: Database) -> RemovingCell:
    await migrate(database, *packages("conductor"))
    return RemovingCell(database)

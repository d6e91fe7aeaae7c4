"""Agents that an operator removed: how their builds and deletions end, on a real database."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from berth.features import packages
from bus.clock import Clock
from bus.errors import Unavailable
from bus.messages import AgentReported, BuildDeleted, HostFailed
from bus.removed_agents import AgentEditRequested
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Message
from bus.worker import Outcome
from cell_conductor import RemovedAgents, assumed_guests
from cell_conductor.builds import Builds
from cell_conductor.core.events import AttemptLimits
from tests.support.conductor_builders import (
    CELL,
    FEATURES,
    PARTS,
    Books,
    a_build_order,
    a_delete,
    a_destroy_order,
    a_placed,
    an_agent_report,
    deliver,
    in_short,
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


def short(messages: Sequence[Message]) -> list[str]:
    """Return messages in short, without repetitions."""
    return list(dict.fromkeys(in_short(message) for message in messages))


async def test_a_build_that_is_placed_on_a_removed_agent_goes_elsewhere(cell: RemovingCell) -> None:
    await cell.remove("agent0")
    assert await cell.place(ONE) == [SECOND]


async def test_a_deletion_ends_and_releases_everything(cell: RemovingCell) -> None:
    await cell.place(ONE)
    await cell.deliver(BUILT)
    assert await cell.deliver(a_delete(ONE, "me")) == [a_destroy_order(ONE, 1)]
    assert await cell.remove("agent0") == [BuildDeleted(build=ONE.build, cell=CELL, reply_to="me")]
    assert cell.books.held == {}
    assert await cell.assumed() == [(ONE.build, 1, "host0", "agent0")]


async def test_a_restored_agent_gets_orders_again(cell: RemovingCell) -> None:
    await cell.place(ONE)
    await cell.remove("agent0")
    assert await cell.edit("agent0", "restore") == 1
    assert await cell.edit("agent0", "restore") == 0
    assert await cell.assumed() == []
    await cell.builds.end_orders_of_removed()
    two = a_placed(2)
    assert await cell.place(two) == [a_build_order(two)]


async def test_another_conductor_of_the_cell_ends_orders_as_well(cell: RemovingCell) -> None:
    await cell.place(ONE)
    await cell.edit("agent0", "remove")
    cell.builds = cell.a_conductor()
    assert SECOND in await cell.deliver(*await cell.builds.resume())


async def test_orders_of_a_removed_agent_end_although_reading_them_failed_at_first(
    cell: RemovingCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cell.place(ONE)
    await cell.edit("agent0", "remove")

    async def away(*_: object) -> None:
        raise Unavailable("the database is away")

    with monkeypatch.context() as broken, pytest.raises(Unavailable):
        broken.setattr(cell.builds, "_silent", away)
        await cell.builds.end_orders_of_removed()
    (report,) = await cell.builds.end_orders_of_removed()
    assert (report.agent, report.outcome) == ("agent0", "failed")
    assert await cell.builds.end_orders_of_removed() == []


async def test_an_adopted_guest_is_not_ordered_from_a_removed_agent(cell: RemovingCell) -> None:
    removed = RemovedAgents(cell.database, Clock())
    await cell.edit(FIRST.agent, "remove")
    await removed.refresh()
    assert await removed.addressed([replace(FIRST, adopt=True)], cell.builds.sharing) == [None]

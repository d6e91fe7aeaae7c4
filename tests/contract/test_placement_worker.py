"""The placement worker on a bus consumes the reports of registered cells only."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from berth.composition import open_placement
from berth.features import packages
from berth.settings import Settings
from bus import topics
from bus.cells import CellEditRequested, DropCell, RegisterCell
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import NoAnswer
from bus.local import LocalBroker, LocalTransport
from bus.resources import FindProviders
from bus.sql.database import Database
from bus.sql.migrations import migrate
from placement_worker import Placement, placement_worker
from tests.support.ids import uid
from tests.support.placement_builders import a_report
from tests.support.waiting import until


@asynccontextmanager
async def served(broker: LocalBroker, database: Database) -> AsyncIterator[Placement]:
    stopping = asyncio.Event()
    async with Bus(LocalTransport(broker)) as bus, asyncio.TaskGroup() as group:
        placement = open_placement(Settings(), database, Clock())
        group.create_task(bus.serve(placement_worker(placement, bus.publish, ("c1",)), stopping))
        try:
            yield placement
        finally:
            stopping.set()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/placement.db")
    await migrate(database, *packages("placement"))
    yield database
    await database.close()


async def test_placement_consumes_reports_of_registered_cells(database: Database) -> None:
    broker = LocalBroker()
    async with Bus(LocalTransport(broker)) as client, served(broker, database) as placement:
        providers, edit = client.asker(topics.CELL_PROVIDERS), client.asker(topics.EDIT_CELL)
        queue = "placement:inventory.reported.c9"
        for sequence in (1, 2):  # made, ended, and made again
            await edit(CellEditRequested(edit=RegisterCell(cell="c9")))
            await until(lambda: queue in broker.queues and bool(broker.queues[queue].readers))
            await client.publish(a_report(1, cell="c9", sequence=sequence))
            await until(lambda: uid(1, "a") in placement.memory.index.rows)
            assert [provider.id for provider in (await providers(FindProviders(cell="c9"))).providers] == [
                uid(1, "a")
            ]
            await edit(CellEditRequested(edit=DropCell(cell="c9")))
            asked = [
                name for name in broker.queues if name.startswith("ask:placement.") and name.endswith(".c9")
            ]
            assert len(asked) == 4  # claim, release, providers, allocations
            await until(lambda: not any(broker.queues[name].readers for name in (queue, *asked)))  # noqa: B023
            assert not placement.memory.index.rows
        with pytest.raises(NoAnswer):
            await client.asker(topics.CELL_PROVIDERS, timeout=0.1)(FindProviders(cell="c9"))
        assert (await providers(FindProviders(cell="c1"))).providers == ()

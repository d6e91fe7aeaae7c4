"""A scheduler that carries out plans of moves, with scripted cells."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from berth.kit.testing import packages
from bus.clock import Clock
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Message
from bus.worker import Worker
from features.moves.emptying import HostEmptying
from features.moves.plans import MovePlans
from features.moves.tests.support.fake_movers import FakeMovers
from placement_worker.testing import IndexedSource, Placement
from scheduler_worker.extension import CellQueries
from tests.support.schedulers import queries_of


def plans_of(
    database: Database, placement: Placement, movers: FakeMovers, publish: Callable[..., object], clock: Clock
) -> MovePlans:
    source, cells = (
        IndexedSource(placement.memory),
        CellQueries(builds=movers.find_builds, instances=movers.find_instances),
    )
    plans = MovePlans(database, movers.find_moves, source, clock, publish)  # type: ignore[arg-type]
    plans.add_kind(HostEmptying(queries_of(placement), cells, source, clock))
    return plans


@asynccontextmanager
async def a_planning_scheduler(
    movers: FakeMovers, placement: Placement
) -> AsyncIterator[tuple[Worker, list[Callable[..., object]]]]:
    """Yield a scheduler with a database of its own, and a list for the function that publishes its requests,
    which the test adds when its bus is open.
    """
    publishes: list[Callable[..., object]] = []

    async def publish(*messages: Message) -> None:
        await publishes[0](*messages)  # type: ignore[misc]

    with TemporaryDirectory() as directory:
        database = Database(f"sqlite+aiosqlite:///{Path(directory)}/scheduler.db")
        try:
            await migrate(database, *packages("scheduler"))
            movers.database = database
            plans = plans_of(database, placement, movers, publish, Clock())
            yield Worker("planner").with_rows([plans.rows()]), publishes
        finally:
            await database.close()

"""Each step of a build writes few bytes to PostgreSQL's write-ahead log."""

from collections.abc import Sequence

import pytest

from berth.features import packages
from bus.claims import Released
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.sql.statement import BoundStatement
from cell_conductor.core.build import Build
from cell_conductor.core.events import AttemptLimits, Event, ReleaseAnswer
from cell_conductor.store import BuildStore
from tests.support.conductor_builders import COURSES, a_build_order, a_delete, a_placed, an_agent_report, step

pytestmark = pytest.mark.services

PLACED = [a_placed(number) for number in range(200)]
STEPS: dict[str, Sequence[Event]] = {
    "active": [an_agent_report(a_build_order(placed), "built") for placed in PLACED],
    "deleting": [a_delete(placed) for placed in PLACED],
    "deleted": [ReleaseAnswer("deleting", Released()) for _ in PLACED],
}
PAGE = 8192
STORE = BuildStore(COURSES)


def stepped(build: Build | None, event: Event) -> Build:
    after, _ = step(build, event, 2.0, AttemptLimits())
    assert after is not None
    return after


async def loaded(database: Database) -> list[Build]:
    async with database.read() as tx:
        builds = await STORE.load(tx, [placed.build for placed in PLACED])
    return [builds[placed.build] for placed in PLACED]


async def logged(database: Database, statement: BoundStatement) -> float:
    """Execute a statement; return the bytes that it logs for each build, without images of whole pages."""
    made = statement.statement.made("postgresql", single=False)
    async with database.write() as tx:
        [(explained,)] = await tx.fetch(
            f"EXPLAIN (ANALYZE, WAL, FORMAT JSON) {made.alone}",
            made.values(statement.values, statement.params),
        )
    plan = explained[0]["Plan"]
    return float(plan["WAL Bytes"] - PAGE * plan["WAL FPI"]) / len(PLACED)


async def test_the_steps_of_a_build_do_not_log_its_placement_again(database_url: str) -> None:
    database = Database(database_url)
    try:
        await migrate(database, *packages("conductor"))
        adding = STORE.adding([stepped(None, placed) for placed in PLACED], 1.0)
        assert len(await database.write_single(*adding)) == len(PLACED)
        bytes_logged = {}
        for status, events in STEPS.items():
            before = await loaded(database)
            changed = list(zip(before, map(stepped, before, events), strict=True))
            bytes_logged[status] = await logged(database, STORE.saving(changed, 2.0, "postgresql"))
        assert {build.status for build in await loaded(database)} == {"deleted"}
        assert all(written <= 600 for written in bytes_logged.values()), bytes_logged
    finally:
        await database.close()

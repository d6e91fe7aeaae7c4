"""Transactions that add rows to a scheduler: its heartbeat, and commits of which the result is unknown."""

from collections.abc import Callable

import pytest

from berth.kit.testing import packages
from bus.errors import Unavailable
from bus.sql.database import Database
from bus.sql.failures import Conflict
from bus.sql.migrations import migrate
from features.waiting.owned_rows import OwnedRows
from features.waiting.tables import queued

DATABASES = ["sqlite file"]


@pytest.fixture
async def store(open_database: Callable[..., Database]) -> Database:
    database = open_database()
    await migrate(database, *packages("scheduler"))
    return database


async def beats(database: Database) -> dict[str, int]:
    async with database.read() as tx:
        return {known.owner: known.beat for known in await queued.roster(tx)}


async def test_rows_are_added_with_a_heartbeat(store: Database) -> None:
    rows = OwnedRows(store, "s1", dict)
    for beat in (0, 1):
        async with rows.adding():
            pass
        assert await beats(store) == {"s1": beat}
    assert not rows.taken_for_dead


async def test_a_scheduler_whose_end_was_recorded_learns_it_from_its_next_heartbeat(store: Database) -> None:
    rows = OwnedRows(store, "s1", dict)
    async with rows.adding():
        pass
    async with store.write() as tx:
        assert await queued.END(tx, owner="s1", beat=0)
    async with rows.adding():
        pass
    assert rows.taken_for_dead


@pytest.mark.parametrize(
    "problem, unknown", [(Conflict("a deadlock"), 0), (Unavailable("the connection was lost"), 1)], ids=str
)
async def test_only_a_transaction_that_may_be_committed_is_compared_with_memory(
    store: Database, problem: Exception, unknown: int
) -> None:
    rows = OwnedRows(store, "s1", dict)
    with pytest.raises(type(problem)):
        async with rows.adding():
            raise problem
    assert rows.unknown_commits == unknown
    assert await beats(store) == {}

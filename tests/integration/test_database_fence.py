"""A database with a standby: the pool finds the primary, and refuses a former primary that still runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import text

from bus.errors import Unavailable
from bus.sql.database import Database
from bus.sql.postgres import DatabaseServers
from deploy.servers import Postgres
from tests.support.standby import Standby, execute, url_of_both
from tests.support.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.slow]


@pytest.fixture
async def primary(primary: Postgres) -> Postgres:
    await execute(primary, "CREATE TABLE commits (id bigserial PRIMARY KEY, process text)")
    return primary


@asynccontextmanager
async def watched(url: str) -> AsyncIterator[Database]:
    database = Database(url, pool_size=3)
    watching = asyncio.ensure_future(database.watch())
    try:
        yield database
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await database.close()


async def insert(database: Database) -> None:
    async with database.write() as tx:
        await tx.execute(text("INSERT INTO commits (process) VALUES ('test')"))


async def timeline(database: Database) -> str:
    async with database.read() as tx:
        return tx.history.partition("/")[2]


async def commits(server: Postgres) -> int:
    return int(await execute(server, "SELECT count(*) FROM commits"))


async def test_a_former_primary_that_still_runs_is_not_used_any_more(
    primary: Postgres, standby: Standby
) -> None:
    forgotten: list[str] = []
    async with watched(url_of_both(primary, standby)) as database:
        database.on_new_history(lambda: forgotten.append("all"))
        await insert(database)
        assert await timeline(database) == "1"

        async def is_replicated() -> bool:
            return await commits(standby) == 1

        await until(is_replicated, "the standby, which follows a moment later, has the first commit")

        async def insert_during_promotion() -> None:
            async with database.write() as tx:
                await tx.execute(text("INSERT INTO commits (process) VALUES ('open')"))
                await standby.promote()
                await until(lambda: forgotten == ["all"], seconds=10)

        with pytest.raises(Unavailable):
            await insert_during_promotion()
        assert (await commits(primary), await commits(standby)) == (1, 1)
        for _ in range(5):
            await insert(database)
        assert await timeline(database) == "2" and forgotten == ["all"]
        assert (await commits(primary), await commits(standby)) == (1, 6)
    another = Database(
        url_of_both(primary, standby)
    )  # of a process that starts now: the first is listed first
    assert await timeline(another) == "2"
    await another.close()


async def test_a_process_with_one_address_refuses_the_former_primary_behind_it(
    primary: Postgres, standby: Standby
) -> None:
    """A virtual address, or a name, may lead back to it."""
    servers = DatabaseServers()
    login = {"user": primary.user, "password": primary.password, "database": primary.database}
    options = {"host": "127.0.0.1", **login}
    before = await servers.connect(port=primary.port, **options)
    await standby.promote()
    session = await servers.connect(port=standby.port, **options)
    assert before.is_closed()
    with pytest.raises(ConnectionError, match="it is a former primary: timeline 2 has started"):
        await servers.connect(port=primary.port, **options)
    session.terminate()

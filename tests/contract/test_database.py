"""Guarantees of the database layer for stores, the same on both databases."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from bus.clock import Clock
from bus.errors import Unavailable
from bus.sql.database import Database
from bus.sql.failures import Conflict, retrying
from bus.sql.postgres import DatabaseServers
from bus.sql.statement import Statement, Transaction
from deploy.servers import Postgres
from tests.support.databases import EVERY_WAY
from tests.support.waiting import patience

DATABASES = EVERY_WAY

Open = Callable[..., Database]

ADD = text("INSERT INTO things (id, used) VALUES (:id, :used)")
PUT = Statement(
    "INSERT INTO things (id, used) SELECT n.id, n.used FROM {n} WHERE true RETURNING id", id=str, used=int
)
USE = text("UPDATE things SET used = used + 1 WHERE id = :id AND used < :total")


@pytest.fixture
async def things(database: Database) -> Database:
    async with database.write() as tx:
        await tx.execute(text("CREATE TABLE things (id TEXT PRIMARY KEY, used BIGINT NOT NULL)"))
        await tx.execute(ADD, {"id": "a", "used": 0})
    return database


async def used(database: Database) -> dict[str, int]:
    async with database.read() as tx:
        return {row.id: row.used for row in await tx.execute(text("SELECT id, used FROM things"))}


@asynccontextmanager
async def meanwhile(*work: Awaitable[Any]) -> AsyncIterator[list["asyncio.Task[Any]"]]:
    tasks = [asyncio.ensure_future(job) for job in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_transaction_commits_all_or_nothing(things: Database) -> None:
    rows = await things.write_single(PUT.of([("b", 1), ("c", 2)]))
    assert {row["id"] for row in rows} == {"b", "c"}
    assert await used(things) == {"a": 0, "b": 1, "c": 2}
    with pytest.raises(IntegrityError):
        await things.write_single(PUT.of([("d", 1), ("a", 2)]))
    assert await used(things) == {"a": 0, "b": 1, "c": 2}  # no part of the transaction
    await things.write_single(PUT.of([("d", 3)]))
    assert (await used(things))["d"] == 3


@pytest.mark.parametrize("times", [1, 2])
async def test_a_cancelled_transaction_has_no_effect_at_any_moment(things: Database, times: int) -> None:
    """If cancelled at any `await`, a transaction writes all or nothing, and blocks no other one."""

    async def write(number: int) -> None:
        async with things.write() as tx:
            await tx.execute(ADD, {"id": f"x{number}", "used": number})
            await tx.execute(ADD, {"id": f"y{number}", "used": number})

    for number in range(12):
        async with meanwhile(write(number)) as (task,):
            for _ in range(number):
                await asyncio.sleep(0)
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0)
        async with patience():
            there = await used(things)
            assert (f"x{number}" in there) == (f"y{number}" in there)
            async with things.write() as tx:
                await tx.execute(USE, {"id": "a", "total": 100})
    assert (await used(things))["a"] == 12


async def test_a_reader_sees_only_committed_rows(things: Database) -> None:
    written, go_on = asyncio.Event(), asyncio.Event()

    async def write() -> None:
        async with things.write() as tx:
            await tx.execute(USE, {"id": "a", "total": 9})
            written.set()
            await go_on.wait()

    async with meanwhile(write(), used(things)) as (writing, reading):
        await written.wait()
        done, _ = await asyncio.wait({reading}, timeout=0.05)  # waits for the only connection
        assert not done or reading.result() == {"a": 0}
        go_on.set()
        await writing
        async with patience():
            assert (await reading) in ({"a": 0}, {"a": 1})
    assert await used(things) == {"a": 1}


async def test_a_read_is_one_snapshot(things: Database) -> None:
    async def count(tx: Transaction) -> int:
        return int((await tx.execute(text("SELECT count(*) FROM things"))).scalar_one())

    async def write() -> None:
        async with things.write() as tx:
            await tx.execute(ADD, {"id": "b", "used": 0})

    async with meanwhile(write()) as (writing,), things.read() as tx:
        before = await count(tx)
        await asyncio.wait({writing}, timeout=0.1)
        assert await count(tx) == before


async def test_ten_of_twenty_concurrent_claims_of_ten_places_succeed(
    things: Database, open_database: Open
) -> None:
    """With a plain BEGIN, 18 of 20 died of "database is locked"."""
    others = [things] if things._file and things._file.memory else [things, open_database()]

    async def claim(number: int) -> bool:
        async with others[number % len(others)].write() as tx:
            seen = (await tx.execute(text("SELECT used FROM things WHERE id = 'a'"))).scalar_one()
            await asyncio.sleep(0)
            return seen < 10 and (await tx.execute(USE, {"id": "a", "total": 10})).rowcount == 1

    async with patience():
        taken = await asyncio.gather(*(claim(number) for number in range(20)))
    assert sorted(taken) == [False] * 10 + [True] * 10
    assert await used(things) == {"a": 10}


async def test_transactions_wait_for_a_free_connection(things: Database) -> None:
    async def look(number: int) -> int:
        async with things.read() as tx:
            await asyncio.sleep(0)
            return int((await tx.execute(text("SELECT CAST(:n AS BIGINT)"), {"n": number})).scalar_one())

    async with patience():
        assert await asyncio.gather(*(look(number) for number in range(50))) == list(range(50))


async def test_a_nested_transaction_that_would_deadlock_is_refused() -> None:
    memory = Database("sqlite+aiosqlite://")
    async with patience():
        for inner in (memory.read, memory.write):
            with pytest.raises(RuntimeError, match="waits for itself"):
                async with memory.write(), inner():
                    pass
        async with memory.write():
            pass
    await memory.close()


@pytest.mark.services
async def test_a_deadlock_is_a_conflict_and_the_retry_succeeds(database_url: str) -> None:
    database = Database(database_url)
    async with database.write() as tx:
        await tx.execute(text("CREATE TABLE things (id TEXT PRIMARY KEY, used BIGINT NOT NULL)"))
        await tx.execute(ADD, [{"id": "a", "used": 0}, {"id": "b", "used": 0}])
    tries, both_hold_one = 0, asyncio.Barrier(2)

    @retrying()
    async def take(first: str, second: str) -> None:
        nonlocal tries
        tries += 1
        async with database.write() as tx:
            await tx.execute(USE, {"id": first, "total": 9})
            if tries <= 2:
                await both_hold_one.wait()
            await tx.execute(USE, {"id": second, "total": 9})

    async with patience():
        await asyncio.gather(take("a", "b"), take("b", "a"))
    assert (tries, await used(database)) == (3, {"a": 2, "b": 2})
    await database.close()


async def test_a_conflict_rolls_back_and_runs_again_in_a_new_transaction(things: Database) -> None:
    lost = [True, True, False]

    @retrying(Clock(chance=random.Random(1)))
    async def claim() -> str:
        async with things.write() as tx:
            await tx.execute(USE, {"id": "a", "total": 9})
            if lost.pop(0):
                raise Conflict("somebody was faster")
        return "mine"

    assert await claim() == "mine"
    assert await used(things) == {"a": 1}


@pytest.fixture
async def on_postgres(postgres: Postgres, database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url, pool_size=4)
    async with database.write() as tx:
        await tx.execute(text("CREATE TABLE things (id TEXT PRIMARY KEY, used BIGINT NOT NULL)"))
        await tx.execute(ADD, {"id": "a", "used": 0})

    async def look() -> None:
        async with database.read() as tx:
            await tx.execute(text("SELECT pg_sleep(0.05)"))

    await asyncio.gather(*(look() for _ in range(4)))
    yield database
    await database.close()


@pytest.mark.services
async def test_a_pooler_that_ignores_the_schema_is_refused(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = DatabaseServers.connect

    async def pooled(self: DatabaseServers, **options: Any) -> Any:
        settings = {name: value for name, value in options["server_settings"].items() if name == "jit"}
        return await connect(self, **options | {"server_settings": settings})

    monkeypatch.setattr(DatabaseServers, "connect", pooled)
    database = Database(database_url, namespace="cell_c1")
    with pytest.raises(Unavailable, match=r'its search_path is .* instead of "cell_c1"'):
        async with database.read():
            pass
    await database.close()


@pytest.mark.services
async def test_a_server_killed_in_a_transaction_causes_one_failure(
    postgres: Postgres, on_postgres: Database
) -> None:
    async def write() -> None:
        async with on_postgres.write() as tx:
            await tx.execute(USE, {"id": "a", "total": 9})
            await asyncio.to_thread(postgres.kill)
            await asyncio.to_thread(postgres.start)
            await tx.execute(USE, {"id": "a", "total": 9})

    with pytest.raises(Unavailable):
        await write()
    for _ in range(8):
        assert await used(on_postgres) == {"a": 0}


# Statements sent by the driver itself, in transactions that SQLAlchemy begins

TAKE = "UPDATE things SET used = used + $1 WHERE id = $2 RETURNING used, id"


@pytest.mark.services
async def test_statements_of_the_driver_belong_to_the_open_transaction(on_postgres: Database) -> None:
    async with on_postgres.write() as tx:
        for total in (1, 2, 3):
            [(used_now, name)] = await tx.fetch(TAKE, [1, "a"])
            assert (used_now, name) == (total, "a")
        assert await tx.fetch("DELETE FROM things WHERE id = $1", ["b"]) == []
        assert await used(on_postgres) == {"a": 0}
    assert await used(on_postgres) == {"a": 3}
    with pytest.raises(RuntimeError):
        async with on_postgres.write() as tx:
            await tx.fetch(TAKE, [1, "a"])
            await tx.fetch(TAKE, [1, "a"])
            raise RuntimeError
    assert await used(on_postgres) == {"a": 3}


INSERT = "INSERT INTO things (id, used) VALUES ($1, $2)"


@pytest.mark.services
@pytest.mark.parametrize("way", ["write_single", "read_single"])
async def test_a_lone_statement_cancelled_before_it_is_executed_leaves_nothing_to_the_next(
    way: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement is cancelled after the driver has prepared it and before the driver executes it."""
    prepare = asyncpg.Connection._get_statement
    count = Statement("SELECT count(*) AS count FROM pg_class WHERE relname = :name")
    database = Database(database_url, pool_size=1)

    async def prepared_and_cancelled(self: Any, *values: Any, **named: Any) -> Any:
        await prepare(self, *values, **named)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async def alone() -> None:
        if way == "write_single":
            await database.write_single(count.of(name="pg_class"))
        else:
            async with database.read_single() as tx:
                await count(tx, name="pg_class")

    try:
        async with database.read():
            pass  # opens the only connection
        with monkeypatch.context() as patched:
            patched.setattr(asyncpg.Connection, "_get_statement", prepared_and_cancelled)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.ensure_future(alone())
        async with database.read() as tx:
            assert [found for (found,) in await count(tx, name="pg_class")] == [1]
    finally:
        await database.close()


@pytest.mark.services
@pytest.mark.parametrize(
    ("sql", "values", "error"),
    [
        (INSERT, ["a", 1], IntegrityError),
        ("SELECT pg_terminate_backend(pg_backend_pid())", [], Unavailable),
        ("SELECT pg_sleep($1)", [99.0], Unavailable),  # longer than a statement may take
        ("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$", [], Conflict),
    ],
    ids=["a name twice", "cut off", "too slow", "a race lost"],
)
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
async def test_errors_of_driver_statements_have_the_same_types(
    on_postgres: Database, sql: str, values: list[Any], error: type[Exception], first: bool
) -> None:
    hasty = Database(on_postgres._url, statement_seconds=0.5, pool_size=1)
    async with patience():
        with pytest.raises(error):
            async with hasty.write() as tx:
                if not first:
                    await tx.fetch(TAKE, [1, "a"])
                await tx.fetch(sql, values)
        assert await used(hasty) == {"a": 0}
    await hasty.close()


@pytest.mark.services
@pytest.mark.parametrize("at", ["BEGIN", "statement", "SQLAlchemy's", "COMMIT"])
async def test_a_server_that_is_shutting_down_is_unavailable(
    on_postgres: Database, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    lost = asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")
    execute, fetch, prepare = asyncpg.Connection.execute, asyncpg.Connection.fetch, asyncpg.Connection.prepare

    async def say(self: Any, command: str, *more: Any, **given: Any) -> Any:
        if command == at:
            raise lost
        return await execute(self, command, *more, **given)

    async def ask(self: Any, *given: Any, **more: Any) -> Any:
        if at == "statement":
            raise lost
        return await fetch(self, *given, **more)

    async def make_ready(self: Any, *given: Any, **more: Any) -> Any:
        if at == "SQLAlchemy's":
            raise lost
        return await prepare(self, *given, **more)

    async with on_postgres.read() as tx:
        before = (await tx.fetch("SELECT pg_backend_pid()", []))[0][0]
    monkeypatch.setattr(asyncpg.Connection, "execute", say)
    monkeypatch.setattr(asyncpg.Connection, "fetch", ask)
    monkeypatch.setattr(asyncpg.Connection, "prepare", make_ready)
    with pytest.raises(Unavailable):
        async with on_postgres.write() as tx:
            if at == "SQLAlchemy's":
                await tx.execute(text("SELECT 3"))
            else:
                await tx.fetch(TAKE, [1, "a"])
    monkeypatch.undo()
    assert await used(on_postgres) == {"a": 0}
    async with on_postgres.read() as tx:
        assert (await tx.fetch("SELECT pg_backend_pid()", []))[0][0] != before


@pytest.mark.services
async def test_silently_lost_connections_cost_one_timeout_in_all(database_url: str) -> None:
    database = Database(database_url, statement_seconds=0.3, pool_size=3)

    async def backend() -> int:
        async with database.read() as tx:
            await tx.execute(text("SELECT pg_sleep(0.05)"))
            return int((await tx.execute(text("SELECT pg_backend_pid()"))).scalar_one())

    backends = set(await asyncio.gather(*(backend() for _ in range(3))))
    assert len(backends) == 3
    for pid in backends:
        os.kill(pid, signal.SIGSTOP)
    try:
        async with patience():
            with pytest.raises(Unavailable):
                await backend()
            alive = await asyncio.gather(*(backend() for _ in range(3)))
            assert backends.isdisjoint(alive)
    finally:
        for pid in backends:
            os.kill(pid, signal.SIGCONT)
    await database.close()


async def failure_of(database: Database) -> str:
    with pytest.raises(Unavailable) as caught:
        await used(database)
    return str(caught.value)


@pytest.mark.services
async def test_an_unreachable_server_is_unavailable_and_the_message_hides_the_password(
    postgres: Postgres, on_postgres: Database
) -> None:
    await asyncio.to_thread(postgres.stop)
    async with patience():  # the pooled connections may fail first, in another way
        while "refused" not in await failure_of(on_postgres):
            pass
    for transaction in (on_postgres.read, on_postgres.write):
        with pytest.raises(Unavailable, match=r"cannot connect: .*refused") as caught:
            async with transaction() as tx:
                await tx.execute(text("SELECT 1"))
        assert postgres.password not in str(caught.value)
        assert f"berth:****@127.0.0.1:{postgres.port}" in str(caught.value)
    with pytest.raises(Unavailable, match=r"cannot connect: .*refused"):
        await on_postgres.write_single(Statement("DELETE FROM things RETURNING id").of())
    await asyncio.to_thread(postgres.start)
    assert await used(on_postgres) == {"a": 0}


async def test_another_process_with_the_lock_on_the_file_makes_it_unavailable(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.sql.sqlite.BUSY_SECONDS", 0.05)
    mine, other = (Database(f"sqlite+aiosqlite:///{tmp_path}/file.db") for _ in range(2))
    async with other.write():
        with pytest.raises(Unavailable, match="locked"):
            async with mine.write():
                pass
    async with mine.write():
        pass
    await mine.close()
    await other.close()


async def test_a_file_that_cannot_be_created_is_unavailable() -> None:
    database = Database("sqlite+aiosqlite:////proc/nowhere/file.db")
    with pytest.raises(Unavailable, match="cannot connect"):
        async with database.read():
            pass
    await database.close()


@pytest.mark.parametrize(
    ("url", "more", "complaint"),
    [
        ("mysql://localhost/x", {}, "postgresql or sqlite"),
        ("sqlite:///dir/", {}, "is a directory"),
        ("sqlite:///file.db", {"namespace": "store"}, "is one file"),
        ("sqlite://", {"namespace": 'x"; DROP'}, "letters, digits"),
        ("postgresql://localhost/x", {"inline": True}, "sqlite only"),
        ("sqlite://", {"pause": lambda: None}, "needs inline"),
    ],
)
def test_a_malformed_database_url_is_refused(url: str, more: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Database(url, **more)


async def test_a_file_is_durable_and_checks_its_references(tmp_path: Any) -> None:
    database = Database(f"sqlite:///{tmp_path}/", namespace="store")
    async with database.read() as tx:
        pragmas = {
            name: (await tx.execute(text(f"PRAGMA {name}"))).scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    assert (tmp_path / "store.db").exists()
    await database.close()


async def test_the_given_pause_is_awaited_before_every_statement_and_commit() -> None:
    pauses = 0

    async def pause() -> None:
        nonlocal pauses
        pauses += 1
        await asyncio.sleep(0)

    database = Database("sqlite+aiosqlite://", inline=True, pause=pause)
    async with database.write() as tx:
        await tx.execute(text("CREATE TABLE things (id TEXT PRIMARY KEY, used BIGINT NOT NULL)"))
    start = pauses
    async with database.write() as tx:  # BEGIN
        await tx.execute(ADD, {"id": "a", "used": 0})
        await tx.execute(ADD, [{"id": "b", "used": 0}, {"id": "c", "used": 0}])
    assert pauses - start == 4
    await database.close()

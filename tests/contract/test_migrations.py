"""Migrations run once, in order, completely or not at all, with concurrent starts."""

import asyncio
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from bus.errors import MigrationsBroken, Unavailable
from bus.sql.database import Database
from bus.sql.migrations import current, migrate
from tests.support.databases import EVERY_WAY

DATABASES = EVERY_WAY

Open = Callable[..., Database]
Add = Callable[..., None]

PACKAGE = "example_store"
FILE = '''
"""{name}"""
from alembic import op
import sqlalchemy as sa
revision = "{revision}"
down_revision = {down!r}

def upgrade() -> None:
    {upgrade}
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The migrations of a package made for the test."""
    folder = tmp_path / "code" / PACKAGE / "migrations"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(folder.parent.parent))
    importlib.invalidate_caches()
    yield folder
    sys.modules.pop(PACKAGE, None)


@pytest.fixture
def add(folder: Path) -> Add:
    """Adds a migration to it."""

    def add_(name: str, down: str | None, upgrade: str = "pass", revision: str = "") -> None:
        content = FILE.format(name=name, revision=revision or name, down=down, upgrade=upgrade)
        (folder / f"{name}.py").write_text(content)

    return add_


@pytest.fixture
def store(open_database: Open) -> Database:
    return open_database()


def table(name: str) -> str:
    return f"op.create_table('{name}', sa.Column('id', sa.BigInteger, primary_key=True))"


async def test_missing_migrations_are_applied_in_order_and_once(store: Database, add: Add) -> None:
    add("0001", None, table("things"))
    assert await current(store, PACKAGE) is None
    assert await migrate(store, PACKAGE) == ["0001"]
    assert await migrate(store, PACKAGE) == []
    add("0002_more", "0001", "op.add_column('things', sa.Column('used', sa.BigInteger))")
    add("0003", "0002_more", "op.execute('INSERT INTO things (id, used) VALUES (1, 2)')")
    assert await migrate(store, PACKAGE) == ["0002_more", "0003"]
    assert await current(store, PACKAGE) == "0003"
    async with store.read() as tx:
        assert (await tx.execute(text("SELECT used FROM things"))).scalar_one() == 2


async def test_a_migration_that_fails_leaves_nothing_of_any(store: Database, add: Add) -> None:
    add("0001", None, table("things"))
    add("0002", "0001", "op.execute('this is no SQL')")
    with pytest.raises(DBAPIError):
        await migrate(store, PACKAGE)
    assert await current(store, PACKAGE) is None
    with pytest.raises(DBAPIError):
        async with store.read() as tx:
            await tx.execute(text("SELECT * FROM things"))
    add("0002", "0001")
    assert await migrate(store, PACKAGE) == ["0001", "0002"]


async def test_of_processes_that_start_concurrently_one_migrates(
    store: Database, open_database: Open, add: Add
) -> None:
    add("0001", None, table("things"))
    in_memory = store._file is not None and store._file.memory is not None
    starting = [store] * 4 if in_memory else [store, *(open_database() for _ in range(3))]
    applied = await asyncio.gather(*(migrate(database, PACKAGE) for database in starting))
    assert sorted(applied) == [[], [], [], ["0001"]]


@pytest.mark.services
async def test_an_advisory_lock_of_another_login_does_not_stop_a_migration(
    database_url: str, add: Add
) -> None:
    add("0001", None, table("things"))
    store, other = Database(database_url, namespace="one"), Database(database_url, namespace="two")
    async with other.write() as tx:
        name = "hashtextextended('berth.migrations.one', 0)"
        await tx.execute(text(f"SELECT pg_advisory_xact_lock({name})"))
        async with asyncio.timeout(20):
            assert await migrate(store, PACKAGE) == ["0001"]
    await store.close()
    await other.close()


async def test_with_nothing_to_do_it_only_looks(
    store: Database, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is locked, and no alembic loaded: every start of a process does it."""
    add("0001", None, table("things"))
    await migrate(store, PACKAGE)
    monkeypatch.setattr("bus.sql.migrations._upgrade", None)
    monkeypatch.setattr(Database, "write", None)
    monkeypatch.setattr(Database, "unhurried", None)
    assert await migrate(store, PACKAGE) == []


@pytest.mark.parametrize("oldest", ["'0008'", "NULL"], ids=["taken away from", "never said"])
async def test_a_database_from_the_future_is_left_alone(store: Database, add: Add, oldest: str) -> None:
    add("0001", None)
    add("0002", "0001")
    await migrate(store, PACKAGE)
    async with store.write() as tx:
        await tx.execute(text(f"UPDATE alembic_version SET version_num = '0009', oldest = {oldest}"))
    with pytest.raises(MigrationsBroken, match="at 0009, which example_store does not have"):
        await migrate(store, PACKAGE)


async def test_files_that_are_no_line_of_revisions_are_refused(store: Database, add: Add) -> None:
    with pytest.raises(MigrationsBroken, match="no migrations"):
        await migrate(store, PACKAGE)
    add("0001", None, revision="abc")
    with pytest.raises(MigrationsBroken, match="the files are 0001, the revisions abc"):
        await migrate(store, PACKAGE)


@pytest.mark.services
async def test_two_namespaces_of_one_database_know_nothing_of_each_other(database_url: str, add: Add) -> None:
    add("0001", None, table("things"))
    stores = [Database(database_url, namespace=name) for name in ("one", "cell-2")]
    for store in stores:
        assert await migrate(store, PACKAGE) == ["0001"]
        async with store.write() as tx:
            await tx.execute(text("INSERT INTO things VALUES (1)"))
    for store in stores:
        await store.close()


# Restarted one by one: processes of the version before, and a database of the next


def forget(folder: Path, *names: str) -> None:
    for name in names:
        (folder / f"{name}.py").unlink()


async def test_code_of_before_a_migration_that_only_adds_still_starts(
    store: Database, add: Add, folder: Path
) -> None:
    add("0001", None, table("things"))
    add("0002_more", "0001", "op.add_column('things', sa.Column('used', sa.BigInteger, server_default='0'))")
    await migrate(store, PACKAGE)
    forget(folder, "0002_more")
    assert await migrate(store, PACKAGE) == []
    async with store.write() as tx:
        await tx.execute(text("INSERT INTO things (id) VALUES (1)"))


async def test_code_that_is_older_than_what_was_taken_away_does_not_start(
    store: Database, add: Add, folder: Path
) -> None:
    add("0001", None, table("things"))
    add("0002", "0001", table("others"))
    add("0003", "0002", "op.drop_table('things')\n\noldest = '0002'")
    await migrate(store, PACKAGE)
    forget(folder, "0003")
    assert await migrate(store, PACKAGE) == []
    forget(folder, "0002")
    with pytest.raises(MigrationsBroken, match="made by a newer version"):
        await migrate(store, PACKAGE)


@pytest.mark.parametrize(
    "statement", ["SELECT id FROM things", "INSERT INTO others (id, word) VALUES (1, 'x')"]
)
async def test_a_process_whose_column_a_newer_version_removed_waits_for_its_restart(
    store: Database, open_database: Open, add: Add, statement: str, caplog: pytest.LogCaptureFixture
) -> None:
    if store._file is not None and store._file.memory is not None:
        pytest.skip("a memory has one process")
    add("0001", None, table("things"))
    add(
        "0002",
        "0001",
        "op.create_table('others', sa.Column('id', sa.BigInteger), sa.Column('word', sa.Text))",
    )
    await migrate(store, PACKAGE)
    with pytest.raises(DBAPIError):  # a bug as always
        async with store.read() as tx:
            await tx.execute(text("SELECT id FROM nothing"))
    gone = "op.drop_table('things'); op.drop_column('others', 'word')"
    add("0003", "0002", gone + "\n\noldest = '0003'")
    await migrate(open_database(), PACKAGE)
    for _ in range(2):
        with pytest.raises(Unavailable, match="migrated by a newer version"):
            async with store.write() as tx:
                await tx.execute(text(statement))
    assert len([record for record in caplog.records if "restart this process" in record.message]) == 1

"""Migrations run once, in order, completely or not at all, with concurrent starts."""

import asyncio
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from bus.errors import MigrationsBroken, Unavailable
from bus.sql.database import Database
from bus.sql.migrations import _TABLES, current, foreign_tables, migrate
from bus.sql.statement import Json, Rows
from tests.support.databases import EVERY_WAY
from tests.support.waiting import until

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
    """Yield the folder for migrations of a package that the test creates."""
    folder = tmp_path / "code" / PACKAGE / "migrations"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(folder.parent.parent))
    importlib.invalidate_caches()
    yield folder
    sys.modules.pop(PACKAGE, None)


@pytest.fixture
def add(folder: Path) -> Add:
    """Return a function that adds a migration to the folder."""

    def add_(name: str, down: str | None, upgrade: str = "pass", revision: str = "") -> None:
        content = FILE.format(name=name, revision=revision or name, down=down, upgrade=upgrade)
        (folder / f"{name}.py").write_text(content)

    return add_


@pytest.fixture
def store(open_database: Open) -> Database:
    return open_database()


async def applied(store: Database) -> list[str]:
    """Migrate, and return the names of the applied migrations."""
    made = await migrate(store, PACKAGE)
    assert {migration.package for migration in made} <= {PACKAGE}
    return [migration.name for migration in made]


def table(name: str) -> str:
    return f"op.create_table('{name}', sa.Column('id', sa.BigInteger, primary_key=True))"


async def test_missing_migrations_are_applied_in_order_and_once(store: Database, add: Add) -> None:
    add("0001", None, table("things"))
    assert await current(store) == {}
    assert await applied(store) == ["0001"]
    assert await migrate(store, PACKAGE) == []
    add("0002_more", "0001", "op.add_column('things', sa.Column('used', sa.BigInteger))")
    add("0003", "0002_more", "op.execute('INSERT INTO things (id, used) VALUES (1, 2)')")
    assert await applied(store) == ["0002_more", "0003"]
    assert await current(store) == {PACKAGE: ("0003", "0001")}
    async with store.read() as tx:
        assert (await tx.execute(text("SELECT used FROM things"))).scalar_one() == 2


async def test_a_failed_migration_undoes_all_migrations_of_its_run(store: Database, add: Add) -> None:
    add("0001", None, table("things"))
    add("0002", "0001", "op.execute('this is no SQL')")
    with pytest.raises(DBAPIError):
        await migrate(store, PACKAGE)
    assert await current(store) == {}
    with pytest.raises(DBAPIError):
        async with store.read() as tx:
            await tx.execute(text("SELECT * FROM things"))
    add("0002", "0001")
    assert await applied(store) == ["0001", "0002"]


async def test_one_of_several_starting_processes_migrates(
    store: Database, open_database: Open, add: Add
) -> None:
    add("0001", None, table("things"))
    in_memory = store._file is not None and store._file.memory is not None
    starting = [store] * 4 if in_memory else [store, *(open_database() for _ in range(3))]
    made = await asyncio.gather(*(applied(database) for database in starting))
    assert sorted(made) == [[], [], [], ["0001"]]


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
            assert await applied(store) == ["0001"]
    await store.close()
    await other.close()


@pytest.mark.services
async def test_a_migration_waits_for_a_long_transaction_and_does_not_hold_up_others(
    database_url: str, add: Add, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, reader, other = [Database(database_url, namespace="waiting") for _ in range(3)]
    add("0001", None, table("things"))
    await migrate(store, PACKAGE)
    add("0002", "0001", "op.add_column('things', sa.Column('word', sa.Text))")
    monkeypatch.setattr("bus.sql.migrations._PAUSE", 0.1)
    async with asyncio.TaskGroup() as group:
        async with reader.read() as long:
            await long.execute(text("SELECT id FROM things"))
            migrating = group.create_task(migrate(store, PACKAGE))
            await until(lambda: "the migration waits" in caplog.text)
            for number in range(20):
                async with asyncio.timeout(5), other.write() as tx:
                    await tx.execute(text("INSERT INTO things (id) VALUES (:id)"), {"id": number})
            assert not migrating.done()
    assert [migration.name for migration in migrating.result()] == ["0002"]
    for database in (store, reader, other):
        await database.close()


async def test_a_database_of_a_newer_version_is_not_changed(store: Database, add: Add) -> None:
    add("0001", None)
    add("0002", "0001")
    await migrate(store, PACKAGE)
    async with store.write() as tx:
        await tx.execute(text("UPDATE migrations SET revision = '0009', oldest = '0008'"))
    with pytest.raises(MigrationsBroken, match="at 0009, which example_store does not have"):
        await migrate(store, PACKAGE)


@pytest.mark.parametrize(
    "others", [("alembic_version", "aggregates"), ("things", "migrations"), ("wp_posts",)]
)
async def test_tables_that_no_migration_made_are_named_and_not_changed(
    store: Database, add: Add, others: Sequence[str]
) -> None:
    add("0001", None, table("things"))
    async with store.write() as tx:
        if store.dialect == "postgresql" and store.namespace:
            await tx.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{store.namespace}"'))
        for name in others:
            columns = "package TEXT, revision TEXT, oldest TEXT" if name == "migrations" else "id INTEGER"
            await tx.execute(text(f"CREATE TABLE {name} ({columns})"))
    with pytest.raises(MigrationsBroken) as refused:
        await migrate(store, PACKAGE)
    [*named] = [name for name in others if name != "migrations"]
    assert f"cannot be migrated: {', '.join(sorted(named))}." in str(refused.value)
    assert "from release 0.2.0 on" in str(refused.value)
    assert await foreign_tables(store) == tuple(sorted(named)) and await current(store) == {}
    async with store.read() as tx:
        kept = await tx.execute(_TABLES[tx.dialect])
    assert sorted(name for (name,) in kept) == sorted(others)


async def test_migration_files_without_a_linear_history_are_refused(store: Database, add: Add) -> None:
    with pytest.raises(MigrationsBroken, match="no migrations"):
        await migrate(store, PACKAGE)
    add("0001", None, revision="abc")
    with pytest.raises(MigrationsBroken, match="the files are 0001, the revisions abc"):
        await migrate(store, PACKAGE)


@pytest.mark.services
async def test_namespaces_of_one_database_are_independent(database_url: str, add: Add) -> None:
    add("0001", None, table("things"))
    stores = [Database(database_url, namespace=name) for name in ("one", "cell-2")]
    for store in stores:
        assert await applied(store) == ["0001"]
        async with store.write() as tx:
            await tx.execute(text("INSERT INTO things VALUES (1)"))
    for store in stores:
        await store.close()


def forget(folder: Path, *names: str) -> None:
    for name in names:
        (folder / f"{name}.py").unlink()


async def test_older_code_starts_after_a_migration_that_only_adds(
    store: Database, add: Add, folder: Path
) -> None:
    add("0001", None, table("things"))
    add("0002_more", "0001", "op.add_column('things', sa.Column('used', sa.BigInteger, server_default='0'))")
    await migrate(store, PACKAGE)
    forget(folder, "0002_more")
    assert await migrate(store, PACKAGE) == []
    async with store.write() as tx:
        await tx.execute(text("INSERT INTO things (id) VALUES (1)"))


async def test_code_older_than_a_removal_does_not_start(store: Database, add: Add, folder: Path) -> None:
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
    with pytest.raises(DBAPIError):  # an error in a statement still raises
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


KINDS: list[tuple[Any, list[Any]]] = [
    (int, [0, -1, 2**62, None]),
    (float, [0.5, -1.25, 16, 1e300, 3.40282e38, None]),
    (str, ["", "it's", 'a "quoted" :word', "ünïcode ☃", "[1]", "null", "12", None]),
    (bool, [True, False, None]),
    (Json, ['{"text":"of mine"}', {"a": [1, None]}, [], "text", 7, None]),
]


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=lambda part: getattr(part, "__name__", ""))
async def test_values_are_stored_unchanged(database: Database, kind: Any, values: list[Any]) -> None:
    n = Rows(database.dialect, "n", at=int, value=kind)
    async with database.read() as tx:
        result = await tx.execute(text(f"SELECT n.value FROM {n} ORDER BY n.at"), n.bind(enumerate(values)))
        arrived = [row.value for row in result]
    if kind is Json and database.dialect == "sqlite":
        arrived = [None if value is None else json.loads(value) for value in arrived]
    assert arrived == values


@pytest.fixture
async def things(database: Database) -> Database:
    async with database.write() as tx:
        await tx.execute(
            text(
                "CREATE TABLE things (id BIGINT, class TEXT, used BIGINT, ratio DOUBLE PRECISION, spec JSON,"
                " gone BOOLEAN, PRIMARY KEY (id, class))"
            )
        )
    return database


@pytest.mark.parametrize("columns", [{}, {"a": bytes}, {"a b": int}])
def test_invalid_columns_are_refused(columns: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Rows("sqlite", "n", **columns)

"""Applies a package's migrations to a database: alembic's files, without its command line.

`<package>/migrations/` holds one sequence of revisions. A file's name is its revision: 0001.py,
0002_more.py.

Processes are restarted one by one, so the previous version runs with a migrated database: a migration only
adds (a table, an index, a column with a default); scripts/migration-rules checks it. A removal must not
affect running code: such a file states `oldest = "0002_more"`, the migration that code must know to work with
the new schema. Older code does not start, and older processes that still run wait for their restart.
"""

import asyncio
import logging
from importlib.resources import as_file, files
from pathlib import Path
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from bus.errors import MigrationsBroken
from bus.sql.database import Database
from bus.sql.failures import Conflict, explained
from bus.sql.transaction import Transaction

_HERE = text("SELECT 1 FROM pg_namespace WHERE nspname = :name")
_ADD_VERSION = text(
    """
    CREATE TABLE IF NOT EXISTS alembic_version
    (version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))
    """
)  # the definition that alembic uses
# Not an advisory lock: any login of the database could hold that one and block migrations.
_LOCK = text("LOCK TABLE alembic_version IN SHARE ROW EXCLUSIVE MODE")
# ALTER TABLE waits for transactions on the table, and later queries wait for ALTER TABLE: limit the wait.
_WAIT_BRIEFLY = text("SET LOCAL lock_timeout = '1s'")
_PAUSE = 2.0  # seconds between two attempts, so that waiting queries can be executed
_ATTEMPTS = 200  # about 10 minutes
_HAS_VERSION = {
    "postgresql": text("SELECT to_regclass('alembic_version') IS NOT NULL"),
    "sqlite": text("SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'"),
}
_VERSION = text("SELECT version_num FROM alembic_version")
_ADD_OLDEST = text("ALTER TABLE alembic_version ADD COLUMN oldest TEXT")
_SET_OLDEST = text("UPDATE alembic_version SET oldest = :oldest")
_OLDEST = text("SELECT oldest FROM alembic_version")

log = logging.getLogger(__name__)

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def migrate(database: Database, package: str) -> list[str]:
    """Apply a package's missing migrations to a database, all or none; return their names. Concurrent
    processes wait for each other. A long transaction on a table delays the table's migration, for 10 minutes
    at most, but never other queries of that table for longer than a second.
    """
    with as_file(files(package) / "migrations") as folder:
        names = _names(folder)
        database.revision = await current(database, package)
        if database.revision == names[-1]:
            return []
        if database.dialect == "postgresql":
            await _make_version_table(database)
        for _ in range(_ATTEMPTS - 1):
            try:
                return await _apply(database, package, folder, names)
            except Conflict as in_use:
                log.warning("%s: the migration waits for another transaction: %s", database.name, in_use)
                await asyncio.sleep(_PAUSE)
        return await _apply(database, package, folder, names)


async def _apply(database: Database, package: str, folder: Path, names: list[str]) -> list[str]:
    async with database.unhurried() as patient, patient.write() as tx:
        if tx.dialect == "postgresql":
            await tx.execute(_LOCK)
            await tx.execute(_WAIT_BRIEFLY)
        before = await _version(tx)  # another process may have migrated before this one got the lock
        if before is not None and before not in names:
            if await oldest_code(tx) in names:
                log.info("%s is at %s, of a newer version, and only added to", database.name, before)
                return []
            raise MigrationsBroken(
                f"{database.name} is at {before}, which {package} does not have: made by a newer version?"
            )
        missing = names[names.index(before) + 1 :] if before is not None else names
        if missing:
            async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
                try:
                    oldest = await tx.connection.run_sync(_upgrade, folder, names)
                except DBAPIError as error:
                    raise explained(error, database.name) from error
            await tx.execute(_SET_OLDEST, {"oldest": oldest})
    database.revision = names[-1]
    return missing


async def current(database: Database, package: str) -> str | None:
    """Return the name of the last migration applied to this database, or None if no migration was applied."""
    async with database.read() as tx:
        return await _version(tx)


async def oldest_code(tx: Transaction) -> str | None:
    """Return the migration of the oldest code that can use this database, or None if unknown."""
    has_it = await tx.connection.run_sync(_has_oldest_revision)
    return (await tx.execute(_OLDEST)).scalar_one_or_none() if has_it else None


def _has_oldest_revision(connection: Connection) -> bool:
    return any(column["name"] == "oldest" for column in inspect(connection).get_columns("alembic_version"))


def _names(folder: Path) -> list[str]:
    names = sorted(file.stem for file in folder.glob("[0-9]*.py"))
    if not names:
        raise MigrationsBroken(f"no migrations in {folder}")
    return names


async def _version(tx: Transaction) -> str | None:
    if not (await tx.execute(_HAS_VERSION[tx.dialect])).scalar_one():
        return None
    return (await tx.execute(_VERSION)).scalar_one_or_none()


async def _make_version_table(database: Database) -> None:
    """Create the schema and alembic's table in a separate transaction, before migrations lock the table."""
    namespace = database.namespace
    try:
        async with database.write() as tx:
            # CREATE SCHEMA IF NOT EXISTS requires the right to create schemas even if this schema exists.
            if namespace and not (await tx.execute(_HERE, {"name": namespace})).first():
                await tx.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{namespace}"'))
            if not (await tx.execute(_HAS_VERSION[tx.dialect])).scalar_one():
                await tx.execute(_ADD_VERSION)
    except IntegrityError:  # IF NOT EXISTS is not atomic: another process has just created it
        log.debug("%s: the version table was created concurrently", database.name)


def _upgrade(connection: Connection, folder: Path, names: list[str]) -> str:
    """Run the missing migrations, and return the migration of the oldest code that can use the new schema.

    Raise MigrationsBroken if the migrations in the folder are not exactly `names`.
    """
    # Imported here because importing alembic is slow, and usually no migration is missing.
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(folder), version_locations=[str(folder)])
    line = [script.revision for script in reversed(list(scripts.walk_revisions()))]
    if line != names:
        raise MigrationsBroken(f"{folder}: the files are {', '.join(names)}, the revisions {', '.join(line)}")
    context = MigrationContext.configure(
        connection,
        opts={"fn": lambda revision, _: scripts._upgrade_revs("head", revision), "script": scripts},
    )
    with Operations.context(context):
        context.run_migrations()
    if not _has_oldest_revision(connection):
        connection.execute(_ADD_OLDEST)
    oldest = [getattr(script.module, "oldest", line[0]) for script in scripts.walk_revisions()]
    return max(oldest, key=line.index)

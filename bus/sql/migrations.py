"""Applies the migrations of packages to a database: alembic's operations, without its command line.

Several packages have tables in one database: a worker, and the features that extend it. A feature may have
tables in the databases of several workers, so its packages are named `features.NAME/placement`. The folder
`placement_worker/migrations/` or `features/NAME/migrations/placement/` holds one sequence of migrations. A
file's name is its revision: 0001.py, 0002_more.py. The table `migrations` has a row for each package.

Processes are restarted one by one, so the previous version runs with a migrated database: a migration only
adds (a table, an index, a column with a default); scripts/migration-rules checks it. A removal must not
affect running code: such a file states `oldest = "0002_more"`, the migration that code must know to work with
the new schema. Older code does not start, and older processes that still run wait for their restart.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from bus.errors import MigrationsBroken
from bus.sql.database import Database
from bus.sql.failures import Conflict, explained
from bus.sql.statement import Transaction

_HERE = text("SELECT 1 FROM pg_namespace WHERE nspname = :name")
_ADD_VERSIONS = text(
    """
    CREATE TABLE IF NOT EXISTS migrations
    (package VARCHAR(100) PRIMARY KEY, revision VARCHAR(32) NOT NULL, oldest VARCHAR(32) NOT NULL)
    """
)
# Not an advisory lock: any login of the database could hold that one and block migrations.
_LOCK = text("LOCK TABLE migrations IN SHARE ROW EXCLUSIVE MODE")
# ALTER TABLE waits for transactions on the table, and later queries wait for ALTER TABLE: limit the wait.
_WAIT_BRIEFLY = text("SET LOCAL lock_timeout = '1s'")
_PAUSE = 2.0  # seconds between two attempts, so that waiting queries can be executed
_ATTEMPTS = 200  # about 10 minutes
_HAS_VERSIONS = {
    "postgresql": text("SELECT to_regclass('migrations') IS NOT NULL"),
    "sqlite": text("SELECT count(*) FROM sqlite_master WHERE name = 'migrations'"),
}
_TABLES = {
    "postgresql": text("SELECT tablename FROM pg_tables WHERE schemaname = current_schema() ORDER BY 1"),
    "sqlite": text(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY 1"
    ),
}
_SHOWN = 5  # foreign tables named in an error
_VERSIONS = text("SELECT package, revision, oldest FROM migrations")
_SET_VERSION = text(
    """
    INSERT INTO migrations (package, revision, oldest) VALUES (:package, :revision, :oldest)
    ON CONFLICT (package) DO UPDATE SET revision = excluded.revision, oldest = excluded.oldest
    """
)

log = logging.getLogger(__name__)

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


class Version(NamedTuple):
    """The last migration of a package in a database, and the migration of the oldest code that can use it."""

    revision: str
    oldest: str


class AppliedMigration(NamedTuple):
    """A migration that the database has."""

    package: str
    name: str


async def migrate(database: Database, *packages: str) -> list[AppliedMigration]:
    """Apply the missing migrations of packages, in this order, to a database, all or none; return these.
    Concurrent processes wait for each other. A long transaction on a table delays the table's migration, for
    10 minutes at most, but never other queries of that table for longer than a second.
    """
    with ExitStack() as stack:
        folders = {package: stack.enter_context(as_file(folder_of(package))) for package in packages}
        names = {package: names_in(folder) for package, folder in folders.items()}
        versions = await current(database)
        if not versions:
            await check_tables(database)
        database.migrations = {name: versions[name].revision for name in packages if name in versions}
        newest = {package: listed[-1] for package, listed in names.items()}
        if database.migrations == newest:
            return []
        if database.dialect == "postgresql":
            await _make_version_table(database)
        for _ in range(_ATTEMPTS - 1):
            try:
                return await _apply(database, folders, names)
            except Conflict as in_use:
                log.warning("%s: the migration waits for another transaction: %s", database.name, in_use)
                await asyncio.sleep(_PAUSE)
        return await _apply(database, folders, names)


async def _apply(
    database: Database, folders: Mapping[str, Path], names: Mapping[str, Sequence[str]]
) -> list[AppliedMigration]:
    applied: list[AppliedMigration] = []
    revisions: dict[str, str] = {}
    async with database.unhurried() as patient, patient.write() as tx:
        if tx.dialect == "postgresql":
            await tx.execute(_LOCK)
            await tx.execute(_WAIT_BRIEFLY)
        else:
            await tx.execute(_ADD_VERSIONS)
        versions = await _read(tx)  # another process may have migrated before this one got the lock
        for package, folder in folders.items():
            missing = _missing(database, package, versions.get(package), names[package])
            revisions[package] = names[package][-1] if missing else versions[package].revision
            if not missing:
                continue
            async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
                try:
                    oldest = await tx.connection.run_sync(_upgrade, folder, names[package], missing)
                except DBAPIError as error:
                    raise explained(error, database.name) from error
            row = {"package": package, "revision": names[package][-1], "oldest": oldest}
            await tx.execute(_SET_VERSION, row)
            applied += (AppliedMigration(package, name) for name in missing)
    database.migrations = revisions
    return applied


def _missing(
    database: Database, package: str, version: Version | None, names: Sequence[str]
) -> Sequence[str]:
    """Return the migrations of a package that a database lacks. Raise MigrationsBroken if a newer version
    migrated the database and this code cannot use it.
    """
    if version is None:
        return names
    if version.revision in names:
        return names[names.index(version.revision) + 1 :]
    if version.oldest not in names:
        raise MigrationsBroken(
            f"{database.name} is at {version.revision}, which {package} does not have: "
            "made by a newer version?"
        )
    log.info(
        "%s is at %s of %s, of a newer version that only added", database.name, version.revision, package
    )
    return ()


async def current(database: Database) -> Mapping[str, Version]:
    """Return the version of each package that has tables in this database."""
    async with database.read() as tx:
        return await _read(tx)


async def _read(tx: Transaction) -> Mapping[str, Version]:
    if not (await tx.execute(_HAS_VERSIONS[tx.dialect])).scalar_one():
        return {}
    return {row.package: Version(row.revision, row.oldest) for row in await tx.execute(_VERSIONS)}


async def foreign_tables(database: Database) -> tuple[str, ...]:
    """Return the tables of a database that no migration of this version or a newer one made: those of a
    version before 0.2.0, or of another program.
    """
    async with database.read() as tx:
        # Read the tables first: a concurrent migration commits its tables together with its version.
        tables = [name for (name,) in await tx.execute(_TABLES[tx.dialect]) if name != "migrations"]
        return () if await _read(tx) else tuple(tables)


def describe_foreign(tables: Sequence[str]) -> str:
    """Return a sentence about tables that this version cannot migrate."""
    named = ", ".join(tables[:_SHOWN]) + (f" and {len(tables) - _SHOWN} more" * (len(tables) > _SHOWN))
    maker = (
        "a version before 0.2.0"
        if "alembic_version" in tables
        else "a version before 0.2.0 or another program"
    )
    return f"It has tables of {maker}, which cannot be migrated: {named}."


FOREIGN_REMEDY = (
    "Use a new database or schema, or correct the URL: databases migrate from release 0.2.0 on "
    "(Upgrade in docs/running.md)."
)


async def check_tables(database: Database) -> None:
    """Raise MigrationsBroken if a database has tables that no migration made; create nothing."""
    if tables := await foreign_tables(database):
        raise MigrationsBroken(f"{database.name}: {describe_foreign(tables)} {FOREIGN_REMEDY}")


def folder_of(package: str) -> Traversable:
    """Return the folder with the migrations of a package."""
    name, _, store = package.partition("/")
    folder = files(name) / "migrations"
    return folder / store if store else folder


def names_in(folder: Traversable) -> list[str]:
    """Return the names of the migrations in a folder, in their order."""
    found = [name.removesuffix(".py") for each in folder.iterdir() if (name := each.name).endswith(".py")]
    names = sorted(name for name in found if name[0].isdigit())
    if not names:
        raise MigrationsBroken(f"no migrations in {folder}")
    return names


async def _make_version_table(database: Database) -> None:
    """Create the schema and the version table in a separate transaction, before migrations lock the table."""
    namespace = database.namespace
    try:
        async with database.write() as tx:
            # CREATE SCHEMA IF NOT EXISTS requires the right to create schemas even if this schema exists.
            if namespace and not (await tx.execute(_HERE, {"name": namespace})).first():
                await tx.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{namespace}"'))
            if not (await tx.execute(_HAS_VERSIONS[tx.dialect])).scalar_one():
                await tx.execute(_ADD_VERSIONS)
    except IntegrityError:  # IF NOT EXISTS is not atomic: another process has just created it
        log.debug("%s: the version table was created concurrently", database.name)


def _upgrade(connection: Connection, folder: Path, names: Sequence[str], missing: Sequence[str]) -> str:
    """Run the missing migrations of a folder. Return the migration of the oldest code that can use the new
    tables.

    Raise MigrationsBroken if the migrations in the folder are not exactly the sequence `names`.
    """
    # Imported here because importing alembic is slow, and usually no migration is missing.
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    modules = [_module(folder, name) for name in names]
    revisions = [module.revision for module in modules]
    if revisions != names or [module.down_revision for module in modules] != [None, *names[:-1]]:
        raise MigrationsBroken(
            f"{folder}: the files are {', '.join(names)}, the revisions {', '.join(revisions)}, "
            "or a `down_revision` is not the revision before"
        )
    with Operations.context(MigrationContext.configure(connection)):
        for module in modules[len(names) - len(missing) :]:
            module.upgrade()
    oldest = [str(getattr(module, "oldest", names[0])) for module in modules]
    return max(oldest, key=names.index)


def _module(folder: Path, name: str) -> ModuleType:
    spec = spec_from_file_location(f"migrations_{name}", folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""Checks whether berth can be upgraded to this version: what `berth doctor` checks, the pending migrations,
and the versions of running processes.
"""

import ast
import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.resources.abc import Traversable
from pathlib import Path

import msgspec
from sqlalchemy import text

from berth import __version__, composition
from berth.configuration import Effective
from berth.doctor.judgement import foreign_finding, judged, sorted_findings
from berth.doctor.looking import inspect
from berth.doctor.seen import BerthSeen, DatabaseSeen
from berth.kit.findings import Finding
from berth.settings import Settings
from berth.support.processes import ask, sockets
from berth.worker_roles import Role
from bus.errors import Unavailable
from bus.sql.migrations import current, folder_of, names_in

LONG_SECONDS = 60.0  # age of a transaction that would delay a migration

_MAY_CREATE = text("SELECT coalesce(has_schema_privilege(current_schema(), 'CREATE'), true)")
_INDEXES = text("SELECT indexname FROM pg_indexes WHERE schemaname = current_schema()")
_LONGEST = text(
    """
    SELECT pid, coalesce(nullif(application_name, ''), usename) AS name,
        extract(epoch FROM clock_timestamp() - xact_start)::float AS seconds
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
    ORDER BY xact_start LIMIT 1
    """
)


class Migration(msgspec.Struct, frozen=True):
    """A migration of a database that this version of berth contains."""

    package: str
    name: str
    oldest: str = ""  # set if this migration removes anything: the migration that running code must know
    indexes: Mapping[str, str] = {}  # the indexes that it creates on existing tables, with the table


class StoreSeen(msgspec.Struct, frozen=True):
    """The state of a reachable database, as far as an upgrade depends on it."""

    migrations: Sequence[Migration]
    # package → the migration that code must know to use its tables in this database
    oldest: Mapping[str, str] = {}
    may_create: bool = True  # this login may create tables
    indexes: frozenset[str] = frozenset()  # the indexes that exist
    longest: tuple[str, float] | None = None  # the oldest transaction: its session, and its age in seconds


async def upgrade_findings(found: Effective, directories: Iterable[Path]) -> list[Finding]:
    """Return the findings that matter for an upgrade to this version, the most severe first."""
    settings = found.settings
    seen = await inspect(settings)
    reached = {database.store for database in seen.databases if not database.problem}
    stores = {
        composition.store_of(role): await _read(settings, role, packages)
        for role, packages in composition.stores(settings).items()
        if composition.store_of(role) in reached
    }
    versions = await _running([path for directory in directories for path in sockets(directory)])
    return judged_upgrade(seen, stores, versions, found.ignored)


def judged_upgrade(
    seen: BerthSeen, stores: Mapping[str, StoreSeen], versions: Mapping[str, int], ignored: Iterable[str]
) -> list[Finding]:
    """Return the findings for an upgrade. `versions`: the number of running processes by version. `ignored`:
    environment variables that name no setting.
    """
    found = judged(seen, lambda database: _migrations(database, stores[database.store]))
    for variable in ignored:
        do = "Correct its name, or remove it: it may be a setting that was renamed."
        found.append(Finding("warning", "settings", f"{variable} is no setting of this version.", do))
    counted = ", ".join(f"{version} ({count})" for version, count in sorted(versions.items()))
    if len(versions.keys() - {__version__}) > 1:
        do = "Complete the previous upgrade: only workers of two versions may run at the same time."
        found.append(Finding("broken", "processes", f"Several earlier versions run: {counted}.", do))
    elif versions:
        found.append(Finding("fine", "processes", f"Versions that run on this machine: {counted}."))
    return sorted_findings(found)


def _migrations(seen: DatabaseSeen, store: StoreSeen) -> Iterator[Finding]:
    finding = partial(Finding, about=f"database {seen.store}")
    if seen.foreign:
        yield foreign_finding(seen)
        return
    newer = [each for each in seen.packages if each.revision and each.revision not in each.known]
    for each in newer:
        sentence = (
            f"It is at {each.revision} of {each.name}, which this version ({__version__}) does not have:"
        )
        if store.oldest.get(each.name) in each.known:
            do = "Go on only if you want the older version."
            yield finding("warning", says=f"{sentence} this is a downgrade, which its data permit.", do=do)
        else:
            do = f"Use the version that made {each.revision}, or a newer one."
            yield finding("broken", says=f"{sentence} its data do not permit a downgrade.", do=do)
    if newer:
        return
    at = {each.name: each.revision for each in seen.packages}
    pending = [each for each in store.migrations if each.name > at[each.package]]
    if not pending:
        yield finding("fine", says="All migrations are applied.")
        return
    names = ", ".join(f"{each.name} of {each.package}" for each in pending)
    if not seen.was_made:
        do = "If it should have data, correct its URL; otherwise `berth system migrate` creates its tables."
        yield finding("warning", says="It has no tables.", do=do)
    else:
        yield finding("fine", says=f"`berth system migrate` will apply {names}.")
    if not store.may_create:
        do = "Give it the right CREATE on its schema, or let the schema's owner run `berth system migrate`."
        yield finding("broken", says="Its login may not create tables.", do=do)
    for migration in pending:
        if not at[migration.package]:
            continue  # it creates the package's tables
        if migration.oldest > at[migration.package]:
            sentence = f"{migration.name} removes what code before {migration.oldest} uses."
            do = f"Upgrade to a version with {migration.oldest} first, and restart all workers with it."
            yield finding("broken", says=sentence, do=do)
        for index, table in migration.indexes.items():
            if index not in store.indexes and seen.version:
                do = f"Create it before, with CREATE INDEX CONCURRENTLY, as {migration.name} defines it."
                sentence = f"Writers of {table} would wait while {migration.name} creates the index {index}."
                yield finding("warning", says=sentence, do=do)
    if store.longest is not None and store.longest[1] > LONG_SECONDS:
        session, seconds = store.longest
        sentence = f"A transaction has been open for {seconds:.0f} s ({session}): migrations may wait for it."
        yield finding("warning", says=sentence, do="Wait until it ends, or end it (pg_terminate_backend).")


async def _read(settings: Settings, role: Role, packages: Sequence[str]) -> StoreSeen:
    migrations = tuple(each for package in packages for each in migrations_of(package, folder_of(package)))
    if not await composition.ever_made(settings, role):
        return StoreSeen(migrations)
    database = composition.database_of(settings, role)
    try:
        code = {package: version.oldest for package, version in (await current(database)).items()}
        async with database.read() as tx:
            if database.dialect == "sqlite":
                return StoreSeen(migrations, code)
            row = (await tx.execute(_LONGEST)).first()
            return StoreSeen(
                migrations,
                code,
                bool((await tx.execute(_MAY_CREATE)).scalar_one()),
                frozenset(name for (name,) in await tx.execute(_INDEXES)),
                (f"process {row.pid}, {row.name}", row.seconds) if row is not None else None,
            )
    finally:
        await database.close()


def migrations_of(package: str, folder: Traversable) -> Iterator[Migration]:
    """Yield the migrations in the folder of a package in their order, read from their source."""
    for file_name in names_in(folder):
        tree = ast.parse((folder / f"{file_name}.py").read_text(encoding="utf-8"))
        code, created, indexes = "", set[str](), dict[str, str]()
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id="oldest")], value=ast.Constant(value=str(code))):
                    pass
                case ast.Call(
                    func=ast.Attribute(attr="create_table"), args=[ast.Constant(value=str(name)), *_]
                ):
                    created.add(name)
                case ast.Call(
                    func=ast.Attribute(attr="create_index"),
                    args=[ast.Constant(value=str(name)), ast.Constant(value=str(table)), *_],
                ):
                    indexes[name] = table
        on_existing = {name: table for name, table in indexes.items() if table not in created}
        yield Migration(package, file_name, code, on_existing)


async def _running(paths: Sequence[Path]) -> Mapping[str, int]:
    """Return the number of running processes by version; processes that do not answer are left out."""

    async def version(path: Path) -> str:
        try:
            return (await ask(path, 0.0)).version
        except (OSError, Unavailable):
            return ""

    return Counter(filter(None, await asyncio.gather(*map(version, paths))))

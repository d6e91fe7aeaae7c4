"""Copies a PostgreSQL database that is in use to another server, by logical replication.

The tables must exist on the new server. `begin` deletes their rows there, copies all rows and keeps the copy
current. `switch` makes the old database read-only, waits for its last commit on the new server, compares all
row counts and copies the sequences. Until then `abandon` ends the copy, and the old database stays in use.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.engine import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from berth.database_logins import administering, quoted_name
from bus.clock import monotonic
from bus.errors import OperationRefused
from bus.masking import masked
from bus.sql.addresses import parse_url

NAME = "berth_copy"  # the name of the publication, the subscription and the replication slot
CATCH_UP_SECONDS = 120.0
_FILLED_BY_MIGRATIONS = ("changes", "migrations")  # tables with rows before any worker has started

_TABLES = """
    SELECT n.nspname AS schema, c.relname AS name,
    EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) AS keyed
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r' AND n.nspname = ANY(:schemas) ORDER BY 1, 2
"""
_OTHER_SCHEMAS = """
    SELECT DISTINCT schemaname FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')
    AND NOT schemaname = ANY(:schemas) ORDER BY 1
"""
_SEQUENCES = """
    SELECT schemaname AS schema, sequencename AS name, last_value FROM pg_sequences
    WHERE schemaname = ANY(:schemas) ORDER BY 1, 2
"""
_SERVER = """
    SELECT current_setting('server_version_num')::int / 10000 AS version, current_database() AS database,
    current_setting('wal_level') AS wal_level, (SELECT system_identifier FROM pg_control_system()) AS system,
    (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser,
    (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user) AS replicates
"""
_STATES = """
    SELECT n.nspname || '.' || c.relname AS name, CAST(r.srsubstate AS text) AS state
    FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid
    JOIN pg_class c ON c.oid = r.srrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE s.subname = :name
"""
_LAG = """
    SELECT pg_wal_lsn_diff(COALESCE(CAST(CAST(:until AS text) AS pg_lsn), pg_current_wal_lsn()),
    confirmed_flush_lsn) AS lag FROM pg_replication_slots WHERE slot_name = :name
"""
_END_SESSIONS = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


@dataclass(frozen=True)
class CopyProgress:
    """The progress of a database's copy to the new server."""

    tables: int
    copied: int  # tables with a complete first copy
    lag: int  # bytes of write-ahead log that the new server has not confirmed

    @property
    def is_current(self) -> bool:
        return self.copied == self.tables


class LiveCopy:
    """A copy of some schemas of a database on another server, made over an administrator's connection to each
    server.
    """

    def __init__(self, old: AsyncConnection, new: AsyncConnection, url: str, schemas: Sequence[str]) -> None:
        self._old = old
        self._new = new
        self._url = url  # the old server's URL, which the new server's subscription contains
        self._schemas = list(schemas)

    async def begin(self, *, replace: bool = False) -> None:
        """Empty the tables on the new server; copy all rows, and then each commit. Raise OperationRefused if
        the servers do not permit the copy, or if tables on the new server have rows and `replace` is false.
        """
        tables = await self._tables(self._old)
        problem = await self._problem(tables) or ("" if replace else await self._rows_to_lose(tables))
        if problem:
            raise OperationRefused(problem)
        listed = ", ".join(map(_quoted, tables))
        # Migrations have inserted rows on the new server, which the old server's rows replace.
        await self._new.exec_driver_sql(f"TRUNCATE {listed}")
        await self._old.exec_driver_sql(f"CREATE PUBLICATION {NAME} FOR TABLE {listed}")
        try:
            url = self._url.replace("'", "''")
            await self._new.exec_driver_sql(
                f"CREATE SUBSCRIPTION {NAME} CONNECTION '{url}' PUBLICATION {NAME} WITH (streaming = on)"
            )
        except BaseException:
            await self._old.exec_driver_sql(f"DROP PUBLICATION {NAME}")
            raise

    async def _problem(self, tables: Sequence[RowMapping]) -> str:
        """Return why the database cannot be copied, or an empty text."""
        old, new = await _first(self._old, _SERVER), await _first(self._new, _SERVER)
        if old["system"] == new["system"] and old["database"] == new["database"]:
            return "both URLs lead to the same database"
        if old["wal_level"] != "logical":
            return f"the old server has wal_level = {old['wal_level']}: set it to logical, and restart it"
        if not old["replicates"]:
            return "the user of the old server needs the attribute REPLICATION: ALTER ROLE ... REPLICATION"
        if not new["superuser"]:
            return "the user of the new server must be a superuser, because it makes a subscription"
        if new["version"] < old["version"]:
            return f"the new server is PostgreSQL {new['version']}, the old one is {old['version']}"
        if await self._exists("pg_publication WHERE pubname", self._old):
            return f"a copy has started already: the old database has a publication {NAME}"
        if not tables:
            return f"the old database has no tables in {', '.join(self._schemas)}"
        others = await self._old.execute(text(_OTHER_SCHEMAS), {"schemas": self._schemas})
        if names := [str(name) for (name,) in others]:
            return f"the old database has tables in {', '.join(names)}, of workers outside these settings"
        if without := [_quoted(table) for table in tables if not table["keyed"]]:
            return f"without a primary key a table cannot be copied: {', '.join(without)}"
        there = {_quoted(table) for table in await self._tables(self._new)}
        if missing := [_quoted(table) for table in tables if _quoted(table) not in there]:
            return f"the new database lacks tables, such as {missing[0]}"
        return ""

    async def _rows_to_lose(self, tables: Sequence[RowMapping]) -> str:
        for table in tables:
            rows = f"SELECT EXISTS (SELECT 1 FROM {_quoted(table)}) AS found"
            if table["name"] not in _FILLED_BY_MIGRATIONS and (await _first(self._new, rows))["found"]:
                return f"{_quoted(table)} has rows on the new server: --replace deletes all rows there first"
        return ""

    async def progress(self, until: str | None = None) -> CopyProgress:
        """Return the numbers of tables and of copied tables, and the bytes of write-ahead log up to `until`
        that the new server lacks.

        `until` is a position in the old server's write-ahead log, by default its end.
        """
        states = (await self._new.execute(text(_STATES), {"name": NAME})).mappings().all()
        found = (await self._old.execute(text(_LAG), {"name": NAME, "until": until})).mappings().first()
        if not states or found is None:
            raise OperationRefused("no copy has started between these databases")
        copied = sum(row["state"] in ("r", "s") for row in states)
        return CopyProgress(len(states), copied, max(0, int(found["lag"] or 0)))

    async def switch(self) -> dict[str, int]:
        """Fence the old database, complete the copy, and return the number of rows of each table. Raise
        OperationRefused if the copy is incomplete; the old database is then writable again.
        """
        progress = await self.progress()
        if not progress.is_current:
            raise OperationRefused(f"{progress.copied} of {progress.tables} tables are copied: wait")
        await self._fence(read_only=True)
        try:
            await self._catch_up()
            rows = await self._compared()
        except BaseException:
            await self._fence(read_only=False)
            raise
        await self._copy_sequences()
        await self._remove()
        return rows

    async def abandon(self) -> None:
        """Remove the replication, and make the old database writable again."""
        await self._remove()
        await self._fence(read_only=False)

    async def _fence(self, *, read_only: bool) -> None:
        """Make all sessions of the old database read-only, or writable; open sessions are ended."""
        # This session stays writable, because it removes the publication later.
        await self._old.exec_driver_sql("SET default_transaction_read_only = off")
        database = quoted_name((await _first(self._old, "SELECT current_database() AS name"))["name"])
        how = "SET default_transaction_read_only = on" if read_only else "RESET default_transaction_read_only"
        await self._old.exec_driver_sql(f"ALTER DATABASE {database} {how}")
        await self._old.execute(text(_END_SESSIONS))

    async def _catch_up(self) -> None:
        until = str((await _first(self._old, "SELECT pg_current_wal_lsn()::text AS lsn"))["lsn"])
        deadline = monotonic() + CATCH_UP_SECONDS
        while (await self.progress(until)).lag:
            if monotonic() > deadline:
                raise OperationRefused(f"the new server has not caught up in {CATCH_UP_SECONDS:.0f} s")
            await asyncio.sleep(0.05)

    async def _compared(self) -> dict[str, int]:
        rows: dict[str, int] = {}
        for table in await self._tables(self._old):
            name = _quoted(table)
            counts = [
                (await _first(side, f"SELECT count(*) AS rows FROM {name}"))["rows"]
                for side in (self._old, self._new)
            ]
            if counts[0] != counts[1]:
                raise OperationRefused(f"{name} has {counts[0]} rows, and {counts[1]} on the new server")
            rows[name] = counts[0]
        return rows

    async def _copy_sequences(self) -> None:
        found = (await self._old.execute(text(_SEQUENCES), {"schemas": self._schemas})).mappings().all()
        for sequence in found:
            if sequence["last_value"] is not None:
                await self._new.execute(
                    text("SELECT setval(CAST(:name AS regclass), :last)"),
                    {"name": _quoted(sequence), "last": sequence["last_value"]},
                )

    async def _remove(self) -> None:
        if await self._exists("pg_subscription WHERE subname", self._new):
            await self._new.exec_driver_sql(f"DROP SUBSCRIPTION {NAME}")
        await self._old.exec_driver_sql("SET default_transaction_read_only = off")
        await self._old.exec_driver_sql(f"DROP PUBLICATION IF EXISTS {NAME}")

    async def _tables(self, side: AsyncConnection) -> Sequence[RowMapping]:
        return (await side.execute(text(_TABLES), {"schemas": self._schemas})).mappings().all()

    async def _exists(self, catalog: str, side: AsyncConnection) -> bool:
        found = await side.execute(text(f"SELECT 1 FROM {catalog} = :name"), {"name": NAME})
        return found.first() is not None


def _quoted(row: RowMapping) -> str:
    return ".".join(quoted_name(row[part]) for part in ("schema", "name"))


async def _first(side: AsyncConnection, question: str) -> RowMapping:
    return (await side.execute(text(question))).mappings().one()


@asynccontextmanager
async def live_copy(old: str, new: str, schemas: Sequence[str]) -> AsyncIterator[LiveCopy]:
    """Connect to two PostgreSQL servers as administrators; yield an object that copies from old to new."""
    for url in (old, new):
        if parse_url(url).hosts:
            raise OperationRefused(f"{masked(url)}: name one server, the primary")
    async with administering(old) as source, administering(new) as target:
        plain = parse_url(old).url.set(drivername="postgresql")
        yield LiveCopy(source, target, plain.render_as_string(hide_password=False), schemas)

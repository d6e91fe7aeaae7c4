"""A database in PostgreSQL or SQLite, with the same interface for both."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from prometheus_client import Counter
from sqlalchemy import exc
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import StaticPool

from bus.errors import Unavailable
from bus.masking import masked
from bus.sql import postgres
from bus.sql.addresses import parse_url
from bus.sql.failures import explained, misses_something, reason
from bus.sql.postgres import PostgresPool
from bus.sql.sqlite import Pause, SqliteFile
from bus.sql.statement import BoundStatement, Dialect, PostgresTransaction, SqliteTransaction, Transaction

REFUSED = Counter("berth_database_refused", "times when no connection to a database was to be had")


log = logging.getLogger(__name__)

FREE_CONNECTION_SECONDS = 30.0

_NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,63}")


_POOL = {
    "max_overflow": 0,
    "pool_timeout": FREE_CONNECTION_SECONDS,
    "pool_use_lifo": True,  # the connection with the warmest caches first
    "pool_reset_on_return": None,  # no rollback by the pool: transactions always commit or roll back
    "hide_parameters": True,  # errors are logged, and parameters such as a build's metadata may be secret
}


def _check(address: URL, namespace: str, inline: bool, pause: Pause | None) -> None:
    """Raise ValueError if arguments of a Database contradict each other."""
    backend = address.get_backend_name()
    if backend not in ("postgresql", "sqlite"):
        raise ValueError(f"{backend}: berth keeps its data in postgresql or sqlite")
    if namespace and not _NAMESPACE.fullmatch(namespace):
        raise ValueError(f"namespace {namespace!r}: letters, digits, _ and - only, at most 63")
    if inline and backend != "sqlite":
        raise ValueError("inline is for sqlite only")
    if pause is not None and not inline:
        raise ValueError("pause needs inline=True: statements in threads have no turns to give")


class Database:
    """A database in PostgreSQL or SQLite. `read`, `read_single` and `write` yield a transaction,
    `write_single` executes one statement.

    A read transaction sees one snapshot of committed data. Write transactions on one SQLite database wait for
    each other, in order.

    `namespace` is a schema in PostgreSQL, and the file's name if an SQLite URL names a directory (ends with
    /). `inline` runs SQLite on the event loop's thread: a commit to a file then blocks the loop until it is
    on disk. `pause` (inline only) is awaited before every statement and every commit, so that other tasks
    run. `statement_seconds` is PostgreSQL's time limit for a statement.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "",
        inline: bool = False,
        pool_size: int = 5,
        pause: Pause | None = None,
        statement_seconds: float | None = 60.0,
    ) -> None:
        parsed = parse_url(url)
        address = parsed.url
        _check(address, namespace, inline, pause)
        self.namespace: Final = namespace
        self.dialect: Final[Dialect] = (
            "postgresql" if address.get_backend_name() == "postgresql" else "sqlite"
        )
        self._url = url
        self._on_new_history: list[Callable[[], None]] = []
        self._file: SqliteFile | None = None
        self._postgres: PostgresPool | None = None
        self._writing: AbstractAsyncContextManager[None] = nullcontext()
        self._reading: AbstractAsyncContextManager[None] = nullcontext()
        pooled = {**_POOL, "pool_size": pool_size}
        if self.dialect == "postgresql":
            self._postgres = PostgresPool(
                parsed, namespace, statement_seconds, pooled, self.begin_new_history
            )
            self._engine = self._postgres.engine
            self._begin_write, self._begin_read = postgres.WRITE, postgres.READ
        else:
            path = _sqlite_path(address, namespace)
            self._file = SqliteFile(path, inline=inline, pause=pause)
            self._engine = create_async_engine(
                address.set(drivername="sqlite+aiosqlite", database=str(path) if path else None),
                async_creator=self._file.connect,
                **(pooled if path else {"pool_reset_on_return": None, "poolclass": StaticPool}),
            )
            # IMMEDIATE locks the database at once: a transaction that reads first fails at its first write
            # if another one has written in between.
            self._begin_write, self._begin_read = "BEGIN IMMEDIATE", "BEGIN"
            self._writing = _FifoLock()
            if path is None:  # all transactions share one connection: a read must not see uncommitted writes
                self._reading = self._writing
        # the last migration of each package when this process began
        self.migrations: Mapping[str, str] = {}
        self._moved_on = False
        self.name: Final = masked(parsed._replace(url=self._engine.url).shown)

    def read(self) -> AbstractAsyncContextManager[Transaction]:
        """Yield a read-only transaction, which sees one snapshot of committed data."""
        return self._transaction(self._begin_read)

    def read_single(self) -> AbstractAsyncContextManager[Transaction]:
        """Yield a transaction for exactly one reading statement, so that PostgreSQL needs one round trip."""
        return self._transaction("")

    def write(self) -> AbstractAsyncContextManager[Transaction]:
        """Yield a transaction that commits at the end of the block, and rolls back on any exception."""
        return self._transaction(self._begin_write, writes=True)

    async def write_single(self, statement: BoundStatement, *preceding: BoundStatement) -> Sequence[Any]:
        """Execute one writing statement, after the `preceding` statements in the same transaction; return the
        rows of the writing statement. On PostgreSQL this takes one round trip.
        """
        if self.dialect == "sqlite":  # BEGIN costs no round trip here, and writers must wait for each other
            async with self.write() as tx:
                return await statement(tx, *preceding)
        async with self._transaction("", writes=True) as tx:  # PostgreSQL commits it without COMMIT
            return await statement(tx, *preceding)

    async def delete_old(
        self, delete: Callable[[Transaction, float, int], Awaitable[int]], before: float, most: int
    ) -> None:
        """Delete rows that are older than `before`, at most `most` in one transaction. `delete` deletes them,
        and returns how many.
        """
        deleted = most
        while deleted == most:
            async with self.write() as tx:
                deleted = await delete(tx, before, most)

    @asynccontextmanager
    async def unhurried(self) -> "AsyncIterator[Database]":
        """Yield a Database for the same data, without time limits for statements."""
        if self.dialect == "sqlite":  # SQLite has no time limit
            yield self
            return
        patient = Database(self._url, namespace=self.namespace, pool_size=1, statement_seconds=None)
        try:
            yield patient
        finally:
            await patient.close()

    @property
    def watches(self) -> bool:
        """Return whether the database has several hosts, so that a worker must run `watch`."""
        return self._postgres is not None and bool(self._postgres.servers.hosts)

    async def watch(self) -> None:
        """Until cancelled, check once a second whether another host was promoted, and if so, close all
        connections to the former primary. While this runs, each writing transaction checks too.
        """
        if self._postgres is not None:
            await self._postgres.servers.watch()

    def on_new_history(self, callback: Callable[[], None]) -> None:
        """Register a callback for a fail-over, after which commits that this process has seen may be lost.
        The callback is called before any connection to the new primary is used.
        """
        self._on_new_history.append(callback)

    def begin_new_history(self) -> None:
        """Call the callbacks for a fail-over."""
        for callback in self._on_new_history:
            callback()

    async def close(self) -> None:
        await self._engine.dispose()
        if self._file is not None:
            self._file.close()

    @asynccontextmanager
    async def _transaction(self, begin: str, *, writes: bool = False) -> AsyncIterator[Transaction]:
        """Yield a transaction. `begin` is the SQL that begins it; empty for a single statement, which needs
        no commit. With `writes`, commit at the end. Raise Unavailable if a newer version of berth has changed
        the database's schema.
        """
        try:
            async with self._writing if writes else self._reading:
                tx = await self._connected()
                try:
                    if writes and self._postgres is not None:
                        await self._postgres.servers.confirm_primary()
                    if begin:
                        await tx.begin(begin)
                    yield tx
                    if writes and begin:
                        await tx.commit()
                finally:
                    await tx.release_connection()
        except Exception as error:
            if not self.migrations or not misses_something(error) or not await self._has_moved_on():
                raise
            if not self._moved_on:
                self._moved_on = True
                log.error("%s was migrated by a newer version: restart this process with it", self.name)
            raise Unavailable(f"{self.name}: migrated by a newer version: {reason(error)}") from error

    async def _has_moved_on(self) -> bool:
        async with self._reading:
            tx = await self._connected()
            try:
                rows = await tx.fetch("SELECT package, revision FROM migrations", [])
            finally:
                await tx.release_connection()
        now = {row["package"]: row["revision"] for row in rows}
        return any(now.get(package) != revision for package, revision in self.migrations.items())

    async def _connected(self) -> Transaction:
        try:
            if self._postgres is not None:
                return PostgresTransaction(self.name, self._postgres, await self._postgres.connect())
            return SqliteTransaction(self.name, await self._engine.connect())
        except exc.TimeoutError as error:
            raise explained(error, self.name) from error
        except (exc.SQLAlchemyError, *postgres.FAILURES) as error:
            # Unavailable for every reason: messages then wait, and an operator can correct even a password.
            REFUSED.inc()
            raise Unavailable(f"{self.name}: cannot connect: {reason(error)}") from error


class _FifoLock(AbstractAsyncContextManager[None]):
    """A lock that tasks acquire in the sequence of their requests; to acquire it twice is an error."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._whose: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if task is not None and task is self._whose:
            raise RuntimeError("a transaction inside a transaction of the same database waits for itself")
        await self._lock.acquire()
        self._whose = task

    async def __aexit__(self, *_: object) -> None:
        self._whose = None
        self._lock.release()


def _sqlite_path(address: URL, namespace: str) -> Path | None:
    name = address.database
    if not name or name == ":memory:":
        return None
    if name.endswith("/"):
        if not namespace:
            raise ValueError(f"{name} is a directory: name a file in it, or give a namespace")
        return Path(name).absolute() / f"{namespace}.db"
    if namespace:
        raise ValueError(f"{name} is one file: to use namespaces, name a directory, with a / at the end")
    return Path(name).absolute()

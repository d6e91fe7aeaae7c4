"""One store, PostgreSQL or SQLite, behind one class; and the few words in which stores talk to it."""

import asyncio
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any, Final, Literal, ParamSpec, TypeVar, cast

import tenacity
from sqlalchemy import exc
from sqlalchemy.engine import URL, CursorResult, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import PoolProxiedConnection, StaticPool
from sqlalchemy.sql.base import Executable

from bus.clock import Clock
from bus.errors import Unavailable
from bus.sql import postgres
from bus.sql.postgres import PostgresPool
from bus.sql.sqlite import Pause, SqliteFile, is_away

P = ParamSpec("P")
T = TypeVar("T")

Dialect = Literal["postgresql", "sqlite"]
Params = Mapping[str, Any] | Sequence[Mapping[str, Any]]

FREE_CONNECTION_SECONDS = 30.0

ATTEMPTS = 8
SHORTEST_WAIT, LONGEST_WAIT = 0.005, 0.1

# SQLSTATEs: what running the transaction again puts right; what waiting puts right.
_CONFLICTS = {"40001", "40P01", "55P03"}
_AWAY = ("08", "53", "57", "58", "25P03")
_BREAKS_A_RULE = "23"  # of uniqueness, of another table

_NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,63}")


class Conflict(Exception):
    """A concurrent writer won; run the transaction again."""


class Transaction(ABC):
    """What is done in here is committed together or not at all."""

    def __init__(self, database: "Database") -> None:
        self.dialect: Final = database.dialect
        self._database = database
        self._after_commit: list[Callable[[], None]] = []

    @property
    @abstractmethod
    def connection(self) -> AsyncConnection:
        """SQLAlchemy's, within this transaction."""

    async def execute(self, statement: Executable, params: Params | None = None) -> CursorResult[Any]:
        try:
            # Core statements that are not ORM ones always give a CursorResult.
            return cast(CursorResult[Any], await self.connection.execute(statement, params))
        except (exc.SQLAlchemyError, OSError) as error:
            raise self._database.explained(error) from error

    @abstractmethod
    async def fetch(self, sql: str, values: Sequence[Any]) -> Sequence[Any]:
        """The rows of a statement in the driver's own words, which is faster than `execute`.

        Values are $1, $2 there (PostgreSQL) or ?1, ?2 (SQLite). A row is read by name, or unpacked.
        """

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call this when the transaction has committed, before the next writer begins (SQLite)."""
        self._after_commit.append(callback)

    @abstractmethod
    async def begin(self, begin: str) -> None: ...

    async def commit(self) -> None:
        """What `write()` does on leaving."""
        await self._commit()
        for callback in self._after_commit:
            callback()

    @abstractmethod
    async def _commit(self) -> None: ...

    @abstractmethod
    async def give_back(self) -> None:
        """Roll back what was not committed, and return the connection to the pool."""


class _OnPostgres(Transaction):
    def __init__(self, database: "Database", pool: PostgresPool, pooled: PoolProxiedConnection) -> None:
        super().__init__(database)
        self._pool = pool
        self._pooled = pooled
        self._driver: Any = pooled.driver_connection
        self._connection: AsyncConnection | None = None  # for whom asks: most statements are the driver's
        self._begun = False

    @property
    def connection(self) -> AsyncConnection:
        if self._connection is None:
            self._connection = self._pool.connection_on(self._pooled)
        return self._connection

    async def execute(self, statement: Executable, params: Params | None = None) -> CursorResult[Any]:
        try:
            return await super().execute(statement, params)
        except postgres.FAILURES as error:  # what SQLAlchemy does not translate
            raise self._explained(error) from error

    async def fetch(self, sql: str, values: Sequence[Any]) -> Sequence[Any]:
        try:
            found: Sequence[Any] = await self._driver.fetch(sql, *values)
            return found
        except postgres.FAILURES as error:
            raise self._explained(error) from error

    async def begin(self, begin: str) -> None:
        self._begun = True
        await self._say(begin)

    async def _commit(self) -> None:
        if await self._say("COMMIT") != "COMMIT":
            raise RuntimeError("a statement of this transaction had failed: it was rolled back")
        self._begun = False

    async def give_back(self) -> None:
        try:
            if self._begun and not self._driver.is_closed():
                await postgres.roll_back(self._driver)
        finally:
            self._pooled.close()

    async def _say(self, command: str) -> str:
        try:
            return str(await self._driver.execute(command))
        except postgres.FAILURES as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> Exception:
        if self._pool.broken(self._driver, error) and not isinstance(error, OSError):
            return Unavailable(f"{self._database.name}: no connection: {_reason(error)}")
        return self._database.explained(error)


class _OnSqlite(Transaction):
    def __init__(self, database: "Database", connection: AsyncConnection) -> None:
        super().__init__(database)
        self._connection = connection

    @property
    def connection(self) -> AsyncConnection:
        return self._connection

    async def fetch(self, sql: str, values: Sequence[Any]) -> Sequence[Any]:
        try:
            driver: Any = (await self._connection.get_raw_connection()).driver_connection
            found: Sequence[Any] = await driver.fetch(sql, values)
            return found
        except (exc.SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise self._database.explained(error) from error

    async def begin(self, begin: str) -> None:
        try:
            await self._connection.exec_driver_sql(begin)
        except (exc.SQLAlchemyError, OSError) as error:
            raise self._database.explained(error) from error

    async def _commit(self) -> None:
        try:
            await self._connection.commit()
        except (exc.SQLAlchemyError, OSError) as error:
            raise self._database.explained(error) from error

    async def give_back(self) -> None:
        await _give_back(self._connection)


class Database:
    """One store, PostgreSQL or SQLite: read() and write() give a transaction, glance() a single statement.

    A read is one snapshot of what was committed. Writers of one SQLite database queue, first come first
    served. `namespace` is a schema in PostgreSQL, and the file's name where a SQLite url names a directory
    (ends with /). `inline` runs SQLite on the event loop's thread: a commit to a file then blocks the loop
    until the disk has it. `pause` (inline only) is awaited before every statement and every commit, so that
    others get a turn there. `statement_seconds` is how long PostgreSQL may take to answer.
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
        address = make_url(url)
        backend = address.get_backend_name()
        if backend not in ("postgresql", "sqlite"):
            raise ValueError(f"{backend}: berth keeps its data in postgresql or sqlite")
        if namespace and not _NAMESPACE.fullmatch(namespace):
            raise ValueError(f"namespace {namespace!r}: letters, digits, _ and - only, at most 63")
        if inline and backend != "sqlite":
            raise ValueError("inline is for sqlite only")
        if pause is not None and not inline:
            raise ValueError("pause needs inline=True: statements in threads have no turns to give")
        self.namespace: Final = namespace
        self.dialect: Final[Dialect] = "postgresql" if backend == "postgresql" else "sqlite"
        self._url = url
        self._file: SqliteFile | None = None
        self._writing: AbstractAsyncContextManager[None] = nullcontext()
        self._reading: AbstractAsyncContextManager[None] = nullcontext()
        pooled = {
            "pool_size": pool_size,
            "max_overflow": 0,
            "pool_timeout": FREE_CONNECTION_SECONDS,
            "pool_use_lifo": True,  # the connection with the warmest caches first
            "pool_reset_on_return": None,  # every way out of a transaction has committed or rolled back
            "hide_parameters": True,  # in errors, which are logged: a build's metadata may be secret
        }
        self._postgres: PostgresPool | None = None
        if self.dialect == "postgresql":
            self._postgres = PostgresPool(address, namespace, statement_seconds, pooled)
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
            # IMMEDIATE: a reader that turns writer fails when another has written since it began.
            self._begin_write, self._begin_read = "BEGIN IMMEDIATE", "BEGIN"
            self._writing = _Turn()
            if path is None:  # one connection: nobody may read while somebody's writes are uncommitted
                self._reading = self._writing
        self.name: Final = str(self._engine.url.set(query={}))  # with *** for the password

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Transaction]:
        """One consistent view of what is committed; writing is an error, or undone."""
        async with self._reading:
            tx = await self._open(self._begin_read)
            try:
                yield tx
            finally:
                await tx.give_back()

    @asynccontextmanager
    async def glance(self) -> AsyncIterator[Transaction]:
        """For one reading statement alone: it costs no more round trips than itself."""
        async with self._reading:
            tx = await self._open("")
            try:
                yield tx
            finally:
                await tx.give_back()

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Transaction]:
        """Commits on leaving; rolls back on an exception and when cancelled."""
        async with self._writing:
            tx = await self._open(self._begin_write)
            try:
                yield tx
                await tx.commit()
            finally:
                await tx.give_back()

    @asynccontextmanager
    async def unhurried(self) -> "AsyncIterator[Database]":
        """The same database for statements that may take as long as they need."""
        if self.dialect == "sqlite":  # never in a hurry
            yield self
            return
        patient = Database(self._url, namespace=self.namespace, pool_size=1, statement_seconds=None)
        try:
            yield patient
        finally:
            await patient.close()

    async def close(self) -> None:
        await self._engine.dispose()
        if self._file is not None:
            self._file.close()

    @property
    def raw_inline_connection(self) -> sqlite3.Connection:
        """An inline memory's one connection, for a simulator's checks. It shows uncommitted writes too."""
        if self._file is None or not self._file.inline or self._file.memory is None:
            raise ValueError("only an inline in-memory database has one")
        return self._file.memory

    def explained(self, error: Exception) -> Exception:
        """What a driver's error means: Conflict, Unavailable, or the error itself when it is a mistake."""
        cause = getattr(error, "orig", None) or error
        reason = _reason(error)
        state = getattr(cause, "sqlstate", None) or ""
        if state in _CONFLICTS or "InvalidCachedStatementError" in type(cause).__name__:
            return Conflict(f"{self.name}: {reason}")
        if isinstance(error, exc.TimeoutError):
            return Unavailable(f"{self.name}: all connections are busy and none came free in time")
        if isinstance(error, TimeoutError):
            return Unavailable(f"{self.name}: no answer in time")
        if isinstance(error, OSError) or getattr(error, "connection_invalidated", False):
            return Unavailable(f"{self.name}: no connection: {reason}")
        if state.startswith(_AWAY) or is_away(cause):
            return Unavailable(f"{self.name}: {reason}")
        if (state.startswith(_BREAKS_A_RULE) and cause is error) or isinstance(error, sqlite3.IntegrityError):
            return exc.IntegrityError(reason, None, error)
        return error

    async def _open(self, begin: str) -> Transaction:
        tx = await self._connected()
        try:
            if begin:
                await tx.begin(begin)
        except BaseException:
            await tx.give_back()
            raise
        return tx

    async def _connected(self) -> Transaction:
        try:
            if self._postgres is not None:
                return _OnPostgres(self, self._postgres, await self._postgres.connect())
            return _OnSqlite(self, await self._engine.connect())
        except exc.TimeoutError as error:
            raise self.explained(error) from error
        except (exc.SQLAlchemyError, *postgres.FAILURES) as error:
            # Whatever keeps us out, a wrong password even, may be put right while messages wait.
            raise Unavailable(f"{self.name}: cannot connect: {_reason(error)}") from error


class _Turn(AbstractAsyncContextManager[None]):
    """One at a time, first come first served; asking again during one's own turn would wait for ever."""

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


async def _give_back(connection: AsyncConnection) -> None:
    """Roll back what was not committed, and return the connection to the pool."""
    if connection.sync_connection is None:
        return
    try:
        await connection.close()
    except (exc.SQLAlchemyError, OSError) as error:
        # It broke. That is no news to a caller who has committed, or is about to raise what broke it.
        if not connection.closed:
            await connection.invalidate(error)
            await connection.close()


def _reason(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    cause = getattr(error, "orig", None) or error
    return " ".join(str(cause).split()) or type(cause).__name__


def _sqlite_path(address: URL, namespace: str) -> Path | None:
    name = address.database
    if not name or name == ":memory:":
        return None
    if name.endswith("/"):
        if not namespace:
            raise ValueError(f"{name} is a directory: name a file in it, or give a namespace")
        return Path(name).absolute() / f"{namespace}.db"
    if namespace:
        raise ValueError(f"{name} is one file: for namespaces name a directory, with a / at the end")
    return Path(name).absolute()


def retrying(
    clock: Clock | None = None, *, attempts: int = ATTEMPTS, otherwise: Callable[P, T] | None = None
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
    """Run it again when it lost a race (Conflict, nothing else), after a random while that grows.

    After the last attempt the Conflict is raised, or the answer is what `otherwise` makes of the same
    arguments. The clock's chance decides how long to wait. Put it around what opens the transaction, never
    inside one.
    """
    chance = (clock or Clock()).chance

    def wait(state: tenacity.RetryCallState) -> float:
        longest = min(LONGEST_WAIT, SHORTEST_WAIT * 2**state.attempt_number)
        return chance.uniform(SHORTEST_WAIT, longest)

    def fall_back(state: tenacity.RetryCallState) -> Any:
        assert otherwise is not None
        return otherwise(*state.args, **state.kwargs)

    patiently = tenacity.retry(
        retry=tenacity.retry_if_exception_type(Conflict),
        stop=tenacity.stop_after_attempt(attempts),
        wait=wait,
        reraise=True,
        retry_error_callback=fall_back if otherwise is not None else None,
    )

    def retried(work: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        @wraps(work)
        async def run(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return await work(*args, **kwargs)  # most win at once, and need nobody to count for them
            except Conflict as lost:
                losses = [lost]

            async def again(*args: P.args, **kwargs: P.kwargs) -> T:
                if losses:
                    raise losses.pop()
                return await work(*args, **kwargs)

            return await patiently(again)(*args, **kwargs)

        return run

    return retried

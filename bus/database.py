"""One store, PostgreSQL or SQLite, behind one class; and the few words in which stores talk to it."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, Literal, ParamSpec, Protocol, TypeVar, cast

import asyncpg
import tenacity
from sqlalchemy import event, exc
from sqlalchemy.engine import URL, CursorResult, ExceptionContext, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import StaticPool
from sqlalchemy.sql.base import Executable

from bus.clock import Clock
from bus.messages import Message
from bus.protocol import Unavailable
from bus.sqlite import Pause, SqliteFile, is_away
from bus.worker import Undeclared

P = ParamSpec("P")
T = TypeVar("T")

Dialect = Literal["postgresql", "sqlite"]
Params = Mapping[str, Any] | Sequence[Mapping[str, Any]]

CONNECT_SECONDS = 10.0
FREE_CONNECTION_SECONDS = 30.0

ATTEMPTS = 8
SHORTEST_WAIT, LONGEST_WAIT = 0.005, 0.1

# SQLSTATEs: what running the transaction again puts right; what waiting puts right; what ends a connection.
_CONFLICTS = {"40001", "40P01", "55P03"}
_AWAY = ("08", "53", "57", "58", "25P03")
_CUT_OFF = ("08", "57P", "25P03")
_BREAKS_A_RULE = "23"  # of uniqueness, of another table

_NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,63}")


class Conflict(Exception):
    """A concurrent writer won; run the transaction again."""


class Announcer(Protocol):
    """What a transaction needs of an outbox."""

    def row(self, message: Message) -> Mapping[str, Any]:
        """What is to be stored for this message; Undeclared when the worker does not announce it."""

    async def save(self, tx: "Transaction", rows: Sequence[Mapping[str, Any]]) -> None: ...

    def wake(self) -> None:
        """Rows were committed."""


class Transaction:
    """What is done in here is committed together or not at all."""

    def __init__(self, database: "Database", connection: AsyncConnection) -> None:
        self.dialect: Final = database.dialect
        self.connection: Final = connection
        self._database = database
        self._driver: Any = None  # PostgreSQL's, once a statement of SQLAlchemy's has begun the transaction
        self._announced: list[Mapping[str, Any]] = []
        self._after_commit: list[Callable[[], None]] = []

    async def execute(self, statement: Executable, params: Params | None = None) -> CursorResult[Any]:
        try:
            # Core statements that are not ORM ones always give a CursorResult.
            return cast(CursorResult[Any], await self.connection.execute(statement, params))
        except (exc.SQLAlchemyError, OSError) as error:
            raise self._database.explained(error) from error

    async def fetch(self, sql: str, values: Sequence[Any]) -> Sequence[Any]:
        """The rows of a statement in PostgreSQL's own words ($1, $2, ...): for those that run all the time.

        What SQLAlchemy does beside it takes five times as long as the driver.
        """
        driver = self._driver
        try:
            if driver is None:
                result = await self.connection.exec_driver_sql(sql, tuple(values) or None)
                rows: Sequence[Any] = result.all() if result.returns_rows else ()
                self._driver = (await self.connection.get_raw_connection()).driver_connection
                return rows
            found: Sequence[Any] = await driver.fetch(sql, *values)
            return found
        except (exc.SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            if driver is not None and isinstance(error, OSError):
                await self.connection.invalidate(error)  # to roll back on it would be to wait once more
            elif driver is not None and driver.is_closed():
                raise Unavailable(f"{self._database.name}: no connection: {_reason(error)}") from error
            raise self._database.explained(error) from error

    def emit(self, message: Message) -> None:
        """Publish this once the transaction has committed, and only then."""
        outbox = self._database.outbox
        if outbox is None:
            raise Undeclared(f"{type(message).__name__} cannot be emitted: this database has no outbox")
        self._announced.append(outbox.row(message))

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call this when the transaction has committed, before the next writer begins (SQLite)."""
        self._after_commit.append(callback)

    async def commit(self) -> None:
        """What `write()` does on leaving."""
        if self._announced:
            outbox = self._database.outbox
            assert outbox is not None
            await outbox.save(self, self._announced)
            self._after_commit.append(outbox.wake)
        try:
            await self.connection.commit()
        except (exc.SQLAlchemyError, OSError) as error:
            raise self._database.explained(error) from error
        for callback in self._after_commit:
            callback()


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
        self.outbox: Announcer | None = None
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
        if self.dialect == "postgresql":
            self._writers = _postgresql_engine(address, namespace, statement_seconds, pooled)
            self._readers = self._writers.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
            self._glancers = self._writers.execution_options(isolation_level="AUTOCOMMIT")
            self._begin_write = self._begin_read = ""  # the driver begins by itself
        else:
            path = _sqlite_path(address, namespace)
            self._file = SqliteFile(path, inline=inline, pause=pause)
            self._writers = self._readers = self._glancers = create_async_engine(
                address.set(drivername="sqlite+aiosqlite", database=str(path) if path else None),
                async_creator=self._file.connect,
                **(pooled if path else {"pool_reset_on_return": None, "poolclass": StaticPool}),
            )
            # IMMEDIATE: a reader that turns writer fails when another has written since it began.
            self._begin_write, self._begin_read = "BEGIN IMMEDIATE", "BEGIN"
            self._writing = _Turn()
            if path is None:  # one connection: nobody may read while somebody's writes are uncommitted
                self._reading = self._writing
        self.name: Final = str(self._writers.url.set(query={}))  # with *** for the password

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Transaction]:
        """One consistent view of what is committed; writing is an error, or undone."""
        async with self._reading:
            connection = await self._begin(self._readers, self._begin_read)
            try:
                yield Transaction(self, connection)
            finally:
                await _give_back(connection)

    @asynccontextmanager
    async def glance(self) -> AsyncIterator[Transaction]:
        """For one reading statement alone: it costs no more round trips than itself."""
        async with self._reading:
            connection = await self._begin(self._glancers, "")
            try:
                yield Transaction(self, connection)
            finally:
                await _give_back(connection)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Transaction]:
        """Commits on leaving; rolls back on an exception and when cancelled."""
        async with self._writing:
            connection = await self._begin(self._writers, self._begin_write)
            try:
                tx = Transaction(self, connection)
                yield tx
                await tx.commit()
            finally:
                await _give_back(connection)

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
        await self._writers.dispose()
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
        if state.startswith(_BREAKS_A_RULE) and cause is error:
            return exc.IntegrityError(reason, None, error)
        return error

    async def _begin(self, engine: AsyncEngine, begin: str) -> AsyncConnection:
        connection = engine.connect()
        try:
            await connection.start()
            if begin:
                await connection.exec_driver_sql(begin)
        except (exc.SQLAlchemyError, OSError) as error:
            await _give_back(connection)
            if connection.sync_connection is None and not isinstance(error, exc.TimeoutError):
                # Whatever keeps us out, a wrong password even, may be put right while messages wait.
                raise Unavailable(f"{self.name}: cannot connect: {_reason(error)}") from error
            raise self.explained(error) from error
        except BaseException:
            await _give_back(connection)
            raise
        return connection


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


def _postgresql_engine(
    address: URL, namespace: str, statement_seconds: float | None, pooled: Mapping[str, Any]
) -> AsyncEngine:
    settings = {
        "application_name": f"berth {namespace}".strip(),
        "jit": "off",  # our statements are short; compiling one costs more than running it
        "idle_in_transaction_session_timeout": "60s",  # a client that froze or vanished loses its locks
    }
    if namespace:
        settings["search_path"] = f'"{namespace}"'
    engine = create_async_engine(
        address.set(drivername="postgresql+asyncpg"),
        connect_args={
            "timeout": CONNECT_SECONDS,
            "command_timeout": statement_seconds,
            "server_settings": settings,
        },
        **pooled,
    )

    # A broken connection takes all that are older with it, so a restarted server is not met by stale ones.
    def invalidate(context: ExceptionContext) -> None:
        error = context.original_exception
        state = getattr(error, "sqlstate", None) or ""
        if isinstance(error, OSError) or state.startswith(_CUT_OFF):
            # Said outright: SQLAlchemy takes a timeout for a cancellation, which says nothing of the others.
            context.is_disconnect = context.invalidate_pool_on_disconnect = True

    # The driver notices by itself when the server hangs up: asking it costs no round trip.
    def check(connection: Any, *_: object) -> None:
        if connection.driver_connection.is_closed():
            raise exc.InvalidatePoolError

    event.listen(engine.sync_engine, "handle_error", invalidate)
    event.listen(engine.sync_engine, "checkout", check)
    return engine


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

    return tenacity.retry(
        retry=tenacity.retry_if_exception_type(Conflict),
        stop=tenacity.stop_after_attempt(attempts),
        wait=wait,
        reraise=True,
        retry_error_callback=fall_back if otherwise is not None else None,
    )

"""Connections to SQLite that replace aiosqlite in SQLAlchemy's dialect: each statement runs in a thread, with
one thread switch, or (`inline`) on the event loop's thread.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from bus.sql.failures import result_code

# SQLite creates companion files with the permissions of the database file
_BESIDE = ("", "-wal", "-shm", "-journal")


def make_private(path: Path) -> None:
    """Permit only the owner to use an SQLite file and its companion files; skip files of other users."""
    for suffix in _BESIDE:
        file = Path(f"{path}{suffix}")
        with suppress(FileNotFoundError, PermissionError):
            if file.stat().st_mode & 0o077:
                file.chmod(0o600)


T = TypeVar("T")

Pause = Callable[[], Awaitable[None]]

MEMORY = ":memory:"
BUSY_SECONDS = 10.0
BUSY_SLEEP = 0.002

# A transaction committed to a file survives a power failure, on macOS too (fullfsync).
_FILE = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "PRAGMA fullfsync = ON")
_ALWAYS = ("PRAGMA foreign_keys = ON", "PRAGMA temp_store = MEMORY")


class SqliteFile:
    """Opens connections to one SQLite database, in a file or (path None) in memory.

    The single connection of a memory database is never closed: SQLAlchemy's close only rolls it back.
    """

    def __init__(self, path: Path | None, *, inline: bool, pause: Pause | None) -> None:
        self.path = path
        self.inline = inline
        self.pause = pause
        self.memory: sqlite3.Connection | None = None
        self._thread: ThreadPoolExecutor | None = None
        if path is None:
            self.memory = _open(MEMORY, 0.0, _ALWAYS)
            if not inline:
                self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sqlite")

    async def connect(self) -> "Connection":
        """Open a connection: with a thread of its own, or inline if statements may block the event loop."""
        if self.memory is not None:
            return Connection(self.memory, self._thread, self.pause, keep=True)
        if self.inline:
            raw = await _patiently(partial(_at_once, self._open_file, 0.0))
            return Connection(raw, None, self.pause, keep=False)
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sqlite")
        try:
            return Connection(await _patiently(partial(self._open_in, thread)), thread, None, keep=False)
        except BaseException:
            thread.shutdown(wait=False)
            raise

    def close(self) -> None:
        """Close and so delete a database in memory; for a database in a file, do nothing."""
        if self._thread is not None:
            self._thread.shutdown()
        if self.memory is not None:
            self.memory.close()

    async def _open_in(self, thread: ThreadPoolExecutor) -> sqlite3.Connection:
        opening = thread.submit(self._open_file, BUSY_SECONDS)
        try:
            return await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unclaimed)  # a cancellation does not stop the thread
            raise

    def _open_file(self, busy_seconds: float) -> sqlite3.Connection:
        assert self.path is not None
        return open_file(self.path, busy_seconds)


class Connection:
    """Replaces aiosqlite's connection class in SQLAlchemy's dialect."""

    isolation_level = None  # the caller executes BEGIN

    def __init__(
        self, raw: sqlite3.Connection, thread: ThreadPoolExecutor | None, pause: Pause | None, *, keep: bool
    ) -> None:
        self._connection: sqlite3.Connection | None = raw  # SQLAlchemy's dialect reads this; None: closed
        self._thread = thread
        self._pause = pause
        self._keeps_thread = keep

    def cursor(self) -> "Cursor":
        return Cursor(self)

    async def create_function(self, *args: Any, **options: Any) -> None:
        await self.call(partial(self.raw.create_function, *args, **options))

    async def commit(self) -> None:
        await self.paused()
        await self.call(self.raw.commit)

    async def rollback(self) -> None:
        # The connection's thread first completes a statement whose caller was cancelled.
        await self.call(self.raw.rollback)

    async def close(self) -> None:
        if (end := self._take_end()) is not None:
            await self.call(end)
            self._end_thread()

    def stop(self) -> None:
        """Close the database connection without waiting, even if no event loop is running any more."""
        if (end := self._take_end()) is None:
            return
        if self._thread is None:
            end()
        else:
            self._thread.submit(end)
            self._end_thread()

    def _take_end(self) -> Callable[[], None] | None:
        """Return the function that ends this connection at the first call, and None at all later calls."""
        raw, self._connection = self._connection, None
        if raw is None:
            return None
        return raw.rollback if self._keeps_thread else raw.close

    async def fetch(self, statement: str, values: Sequence[Any]) -> Sequence[sqlite3.Row]:
        """Execute a statement and return all of its rows, which are read by column name."""
        await self.paused()
        return await self.call(_fetch, self.raw, statement, values)

    async def paused(self) -> None:
        """Wait for the pause that a test has planned before each statement, if any."""
        if self._pause is not None:
            await self._pause()

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a blocking function on the connection's thread, or here if it has none."""
        if self._thread is not None:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)
        if self._keeps_thread:
            return function(*args)
        return await _patiently(partial(_at_once, function, *args))

    @property
    def raw(self) -> sqlite3.Connection:
        if self._connection is None:
            raise ValueError("no active connection")  # the dialect compares this text
        return self._connection

    def _end_thread(self) -> None:
        if self._thread is not None and not self._keeps_thread:
            self._thread.shutdown(wait=False)


class Cursor:
    """Replaces aiosqlite's cursor class in SQLAlchemy's dialect; `execute` also fetches all rows."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._raw = connection.raw.cursor()
        self._rows: Sequence[Any] = ()
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self.arraysize = 1

    async def __aenter__(self) -> Self:
        return self

    async def execute(self, statement: str, values: Sequence[Any] = ()) -> Self:
        await self._connection.paused()
        self._rows = await self._connection.call(self._execute, statement, values)
        return self

    async def executemany(self, statement: str, many: Sequence[Sequence[Any]]) -> Self:
        await self._connection.paused()
        await self._connection.call(self._raw.executemany, statement, many)
        self.description, self.rowcount = None, self._raw.rowcount
        return self

    async def fetchall(self) -> Sequence[Any]:
        return self._rows

    async def close(self) -> None:
        pass

    def _execute(self, statement: str, values: Sequence[Any]) -> Sequence[Any]:
        raw = self._raw
        raw.execute(statement, values)
        rows = raw.fetchall() if raw.description else ()
        self.description, self.rowcount, self.lastrowid = raw.description, raw.rowcount, raw.lastrowid
        return rows


def open_file(path: Path, busy_seconds: float, *pragmas: str) -> sqlite3.Connection:
    """Open a database in a file that only the owner may use. `pragmas` are executed first."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _open(str(path), busy_seconds, (*pragmas, *_FILE, *_ALWAYS))


def _open(name: str, busy_seconds: float, pragmas: Sequence[str]) -> sqlite3.Connection:
    raw = sqlite3.connect(
        name, timeout=busy_seconds, isolation_level=None, check_same_thread=False, cached_statements=512
    )
    try:
        if name != MEMORY:
            make_private(Path(name))
        for pragma in pragmas:
            raw.execute(pragma)
    except BaseException:
        raw.close()
        raise
    return raw


def _fetch(raw: sqlite3.Connection, statement: str, values: Sequence[Any]) -> Sequence[sqlite3.Row]:
    cursor = raw.cursor()
    cursor.row_factory = sqlite3.Row
    return cursor.execute(statement, values).fetchall()


def _close_unclaimed(opening: "Future[sqlite3.Connection]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


async def _at_once(function: Callable[..., T], *args: Any) -> T:
    return function(*args)


async def _patiently(attempt: Callable[[], Awaitable[T]]) -> T:
    """Retry an operation while another connection holds the database's lock.

    If SQLite itself waited, it could block the event loop on which the lock's holder runs. If two connections
    create a file at the same time, SQLite does not wait at all.
    """
    waited = 0.0
    while True:
        try:
            return await attempt()
        except sqlite3.OperationalError as error:
            if result_code(error) != sqlite3.SQLITE_BUSY or waited >= BUSY_SECONDS:
                raise
        await asyncio.sleep(BUSY_SLEEP)
        waited += BUSY_SLEEP

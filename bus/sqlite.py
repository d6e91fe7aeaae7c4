"""SQLite beneath SQLAlchemy's aiosqlite dialect: one hop to a thread per statement, or inline none at all.

The dialect talks to what looks like aiosqlite's connection and cursor. aiosqlite itself hops for every
cursor, execute, fetch and close; here a statement and its rows are one hop, and inline there are none.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

T = TypeVar("T")

Pause = Callable[[], Awaitable[None]]

BUSY_SECONDS = 10.0
BUSY_SLEEP = 0.002

# A file is durable: a committed transaction survives the power going, on macOS too (fullfsync).
_FILE = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",
)
_ALWAYS = ("PRAGMA foreign_keys = ON", "PRAGMA temp_store = MEMORY")

# Conditions of the machine, or of another process with the same file; not mistakes of ours.
_AWAY = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
}


def is_away(error: BaseException) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _AWAY


def _is_busy(error: sqlite3.Error) -> bool:
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


class SqliteFile:
    """One database, in a file or (path None) in memory: opens its connections.

    The memory's one connection outlives whatever SQLAlchemy does to it: to close it there only rolls it back.
    """

    def __init__(self, path: Path | None, *, inline: bool, pause: Pause | None) -> None:
        self.path = path
        self.inline = inline
        self.pause = pause
        self.memory: sqlite3.Connection | None = None
        self._thread: ThreadPoolExecutor | None = None
        if path is None:
            self.memory = _open(":memory:", _ALWAYS)
            self._thread = _thread(inline)

    async def connect(self) -> "Connection":
        if self.memory is not None:
            return Connection(self.memory, self._thread, self.pause, keep=True)
        thread = _thread(self.inline)
        if thread is None:
            raw = self._open_file()
            raw.execute("PRAGMA busy_timeout = 0")
            return Connection(raw, None, self.pause, keep=False)
        opening = thread.submit(self._open_file)
        try:
            raw = await asyncio.wrap_future(opening)
        except BaseException:
            opening.add_done_callback(_close_unclaimed)  # cancelled, but the thread opens it all the same
            thread.shutdown(wait=False)
            raise
        return Connection(raw, thread, self.pause, keep=False)

    def close(self) -> None:
        """The memory and all that is in it."""
        if self._thread is not None:
            self._thread.shutdown()
        if self.memory is not None:
            self.memory.close()

    def _open_file(self) -> sqlite3.Connection:
        assert self.path is not None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return _open(str(self.path), (*_FILE, *_ALWAYS))


class Connection:
    """What the dialect takes for an aiosqlite connection."""

    isolation_level = None  # BEGIN is ours

    def __init__(
        self, raw: sqlite3.Connection, thread: ThreadPoolExecutor | None, pause: Pause | None, *, keep: bool
    ) -> None:
        self._connection: sqlite3.Connection | None = raw  # the dialect looks here whether it is open
        self.inline = thread is None
        self._thread = thread
        self._pause = pause
        self._keep = keep

    def cursor(self) -> "Cursor":
        return Cursor(self)

    async def create_function(self, *args: Any, **options: Any) -> None:
        await self.call(partial(self._open.create_function, *args, **options))

    async def commit(self) -> None:
        await self.paused()
        await self.call(self._open.commit)

    async def rollback(self) -> None:
        # Queued behind a statement whose waiter was cancelled, never in the middle of it.
        await self.call(self._open.rollback)

    async def close(self) -> None:
        raw, self._connection = self._connection, None
        if raw is None:
            return
        await _call(self._thread, raw.rollback if self._keep else raw.close)
        self._end_thread()

    def stop(self) -> None:
        """Close without waiting, also where there is no event loop any more."""
        raw, self._connection = self._connection, None
        if raw is None:
            return
        end = raw.rollback if self._keep else raw.close
        if self._thread is None:
            end()
        else:
            self._thread.submit(end)
            self._end_thread()

    async def paused(self) -> None:
        if self._pause is not None:
            await self._pause()

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        return await _call(self._thread, function, *args)

    @property
    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise ValueError("no active connection")  # words the dialect knows
        return self._connection

    def _end_thread(self) -> None:
        if self._thread is not None and not self._keep:
            self._thread.shutdown(wait=False)


class Cursor:
    """What the dialect takes for an aiosqlite cursor: it executes and fetches everything in one go."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._raw = connection._open.cursor()
        self._rows: Sequence[Any] = ()
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self.arraysize = 1

    async def __aenter__(self) -> Self:
        return self

    async def execute(self, statement: str, values: Sequence[Any] = ()) -> Self:
        await self._connection.paused()
        waited = 0.0
        while True:
            try:
                self._rows = await self._connection.call(self._execute, statement, values)
            except sqlite3.OperationalError as error:
                if not self._connection.inline or not _is_busy(error) or waited >= BUSY_SECONDS:
                    raise
                # Waiting inside SQLite would stop the loop, and with it perhaps the one we wait for.
                await asyncio.sleep(BUSY_SLEEP)
                waited += BUSY_SLEEP
            else:
                return self

    async def executemany(self, statement: str, many: Sequence[Sequence[Any]]) -> Self:
        await self._connection.paused()
        await self._connection.call(self._raw.executemany, statement, many)
        self.description, self.rowcount = None, self._raw.rowcount
        return self

    async def fetchall(self) -> Sequence[Any]:
        return self._rows

    async def close(self) -> None:
        """Nothing is left open: everything was fetched."""

    def _execute(self, statement: str, values: Sequence[Any]) -> Sequence[Any]:
        raw = self._raw
        raw.execute(statement, values)
        rows = raw.fetchall() if raw.description else ()
        self.description, self.rowcount, self.lastrowid = raw.description, raw.rowcount, raw.lastrowid
        return rows


def _open(name: str, pragmas: Sequence[str]) -> sqlite3.Connection:
    raw = sqlite3.connect(
        name, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=512
    )
    try:
        for pragma in pragmas:
            raw.execute(pragma)
    except BaseException:
        raw.close()
        raise
    return raw


def _close_unclaimed(opening: "Future[sqlite3.Connection]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _thread(inline: bool) -> ThreadPoolExecutor | None:
    return None if inline else ThreadPoolExecutor(max_workers=1, thread_name_prefix="sqlite")


async def _call(thread: ThreadPoolExecutor | None, function: Callable[..., T], *args: Any) -> T:
    if thread is None:
        return function(*args)
    return await asyncio.get_running_loop().run_in_executor(thread, function, *args)

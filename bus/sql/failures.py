"""The meaning of database errors, and the repetition of work that lost a race. For PostgreSQL the longest
listed prefix of the SQLSTATE counts, for SQLite the result code. Unlisted errors are defects.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import wraps
from typing import Any, Final, ParamSpec, Protocol, TypeVar, cast

from prometheus_client import Counter
from sqlalchemy import exc

from bus.clock import Clock
from bus.errors import Unavailable
from bus.masking import distrusted


class Conflict(Exception):
    """A concurrent writer won; run the transaction again."""


class Meaning(Enum):
    RACE = "run the transaction again"
    AWAY = "wait: the machine, the network or an operator puts it right, and no message is to blame"
    RULE = "a constraint of the schema is violated: a duplicate key or a missing reference"
    BUG = "it fails however often it is tried"


READ_ONLY = "25006"

SQLSTATES: Final[dict[str, Meaning]] = {
    "08": Meaning.AWAY,  # no connection
    "0A000": Meaning.BUG,  # but see OUTDATED_PLAN
    "23": Meaning.RULE,
    READ_ONLY: Meaning.AWAY,  # a standby, or a primary that was demoted
    "25P03": Meaning.AWAY,  # idle in a transaction for too long: we froze
    "25P04": Meaning.AWAY,  # the transaction took too long
    "26": Meaning.AWAY,  # it has forgotten our prepared statement: a pooler has changed servers
    "28": Meaning.AWAY,  # not let in
    "3D": Meaning.AWAY,  # no such database: not restored yet
    "40": Meaning.RACE,  # serialization, deadlock
    "40002": Meaning.RULE,
    "40003": Meaning.AWAY,  # unknown whether the statement was executed
    "42501": Meaning.AWAY,  # a permission was revoked, and may be granted again
    "53": Meaning.AWAY,  # disk full, out of memory, too many connections
    "55000": Meaning.AWAY,  # not in this state: recovering
    "55006": Meaning.AWAY,  # an object in use by a session that alters it
    "55P03": Meaning.RACE,  # a lock was not available with NOWAIT
    "57": Meaning.AWAY,  # shut down, crashed, starting up, cancelled, dropped
    "58": Meaning.AWAY,  # the system beneath it: I/O
    "72": Meaning.RACE,  # the snapshot is too old
    "F0": Meaning.AWAY,  # its configuration is broken
    "XX": Meaning.AWAY,  # broken inside, or data or an index corrupted: until it is restored or fails over
}
OUTDATED_PLAN = "InvalidCachedStatementError"  # a table was altered since the statement was prepared

RESULT_CODES: Final[dict[int, Meaning]] = {
    sqlite3.SQLITE_PERM: Meaning.AWAY,
    sqlite3.SQLITE_BUSY: Meaning.AWAY,  # another process has the file, for longer than we wait
    sqlite3.SQLITE_LOCKED: Meaning.AWAY,
    sqlite3.SQLITE_NOMEM: Meaning.AWAY,
    sqlite3.SQLITE_READONLY: Meaning.AWAY,  # the disk was mounted so, or the file moved away
    sqlite3.SQLITE_INTERRUPT: Meaning.AWAY,
    sqlite3.SQLITE_IOERR: Meaning.AWAY,
    sqlite3.SQLITE_CORRUPT: Meaning.AWAY,  # until an operator restores the file
    sqlite3.SQLITE_FULL: Meaning.AWAY,
    sqlite3.SQLITE_CANTOPEN: Meaning.AWAY,
    sqlite3.SQLITE_PROTOCOL: Meaning.AWAY,  # other connections hold the locks of the write-ahead log
    sqlite3.SQLITE_SCHEMA: Meaning.RACE,  # a table was altered since the statement was prepared
    sqlite3.SQLITE_CONSTRAINT: Meaning.RULE,
    sqlite3.SQLITE_NOLFS: Meaning.AWAY,
    sqlite3.SQLITE_AUTH: Meaning.AWAY,
    sqlite3.SQLITE_NOTADB: Meaning.AWAY,
}


def sqlstate(error: BaseException) -> str:
    """Return PostgreSQL's SQLSTATE, or an empty string. SQLAlchemy has the driver's error in `orig`."""
    return getattr(getattr(error, "orig", None) or error, "sqlstate", None) or ""


def result_code(error: BaseException) -> int:
    """Return SQLite's primary result code, or 0."""
    return int(getattr(getattr(error, "orig", None) or error, "sqlite_errorcode", 0)) & 0xFF


def meaning(error: BaseException) -> Meaning:
    if getattr(error, "connection_invalidated", False):
        return Meaning.AWAY
    state = sqlstate(error)
    if state:
        if OUTDATED_PLAN in type(getattr(error, "orig", None) or error).__name__:
            return Meaning.RACE
        return next((SQLSTATES[state[:n]] for n in (5, 2) if state[:n] in SQLSTATES), Meaning.BUG)
    code = result_code(error)
    if code:
        return RESULT_CODES.get(code, Meaning.BUG)
    # No reply of a server: the connection was lost, or never existed.
    return Meaning.AWAY if isinstance(error, OSError | exc.TimeoutError) else Meaning.BUG


def misses_something(error: BaseException) -> bool:
    """Return whether a database error is about a table or column that only another version has."""
    if sqlstate(error) in ("42P01", "42703", "42883", "42P10", "23502"):
        return True
    text = str(getattr(error, "orig", None) or error)
    missing = ("no such table", "no such column", "has no column", "NOT NULL constraint failed")
    return bool(result_code(error)) and any(part in text for part in missing)


def explained(error: Exception, database: str) -> Exception:
    """Return the error for callers: Conflict, Unavailable, IntegrityError, or a defect's error itself."""
    match meaning(error):
        case Meaning.RACE:
            return Conflict(f"{database}: {reason(error)}")
        case Meaning.AWAY:
            return Unavailable(f"{database}: {_what_is_away(error)}")
        case Meaning.RULE if not isinstance(error, exc.SQLAlchemyError):
            return exc.IntegrityError(reason(error), None, error)
    return error


def _what_is_away(error: BaseException) -> str:
    if sqlstate(error) or result_code(error):
        return reason(error)
    if isinstance(error, exc.TimeoutError):
        return "all connections are busy and none came free in time"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return f"no connection: {reason(error)}"


def reason(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if why := distrusted(error):
        return why
    cause = getattr(error, "orig", None) or error
    return " ".join(str(cause).split()) or type(cause).__name__


LOST_RACES = Counter("berth_transactions_lost", "transactions retried after a serialization failure")


P = ParamSpec("P")
T = TypeVar("T")

ATTEMPTS = 8
SHORTEST_WAIT, LONGEST_WAIT = 0.005, 0.1


class RunsAgain(Protocol):
    """The type of decorators that repeat a coroutine function after a lost race."""

    def __call__(self, work: Callable[P, Awaitable[T]], /) -> Callable[P, Awaitable[T]]: ...


def retrying(
    clock: Clock | None = None, *, attempts: int = ATTEMPTS, otherwise: Callable[..., Any] | None = None
) -> RunsAgain:
    """Repeat a transaction that lost a race (Conflict, nothing else), after random pauses that grow.

    After the last attempt the Conflict is raised, or the answer is what `otherwise` makes of the same
    arguments. The clock's chance decides how long to wait. Put it around what opens the transaction, never
    inside one.
    """
    chance = (clock or Clock()).chance

    def retried(work: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        @wraps(work)
        async def run(*args: P.args, **kwargs: P.kwargs) -> T:
            for attempt in range(1, attempts):
                try:
                    return await work(*args, **kwargs)
                except Conflict:
                    if attempt == 1:
                        LOST_RACES.inc()
                longest = min(LONGEST_WAIT, SHORTEST_WAIT * 2**attempt)
                await asyncio.sleep(chance.uniform(SHORTEST_WAIT, longest))
            try:
                return await work(*args, **kwargs)
            except Conflict:
                if otherwise is None:
                    raise
                return cast(T, otherwise(*args, **kwargs))

        return run

    return retried

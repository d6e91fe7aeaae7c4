"""Classifies database errors, and retries transactions that lost a race. For PostgreSQL the longest listed
prefix of the SQLSTATE decides, for SQLite the result code. Unlisted errors are defects.
"""

import sqlite3
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import wraps
from typing import Any, Final, ParamSpec, Protocol, TypeVar, overload

import tenacity
from prometheus_client import Counter
from sqlalchemy import exc

from bus.clock import Clock
from bus.errors import Unavailable
from bus.masking import distrusted


class Conflict(Exception):
    """Raised because a concurrent transaction won a race; run this transaction again."""


class Meaning(Enum):
    """The consequence of an error of the database for the transaction."""

    RACE = "run the transaction again"
    AWAY = "wait: the machine, the network or an operator puts it right, and no message is to blame"
    RULE = "a constraint of the schema is violated: a duplicate key or a missing reference"
    BUG = "it fails however often it is tried"


READ_ONLY = "25006"

SQLSTATES: Final[dict[str, Meaning]] = {
    "08": Meaning.AWAY,  # no connection
    "0A000": Meaning.BUG,  # feature not supported; but with OUTDATED_PLAN the statement is retried
    "23": Meaning.RULE,
    READ_ONLY: Meaning.AWAY,  # a standby, or a demoted primary
    "25P03": Meaning.AWAY,  # idle in a transaction for too long: this process hung
    "25P04": Meaning.AWAY,  # the transaction took too long
    "26": Meaning.AWAY,  # a prepared statement is unknown: a pooler has changed servers
    "28": Meaning.AWAY,  # login refused
    "3D": Meaning.AWAY,  # no such database: not restored yet
    "40": Meaning.RACE,  # serialization, deadlock
    "40002": Meaning.RULE,
    "40003": Meaning.AWAY,  # unknown whether the statement was executed
    "42501": Meaning.AWAY,  # a permission was revoked, and may be granted again
    "53": Meaning.AWAY,  # disk full, out of memory, too many connections
    "55000": Meaning.AWAY,  # not possible while the server is recovering
    "55006": Meaning.AWAY,  # an object in use by a session that alters it
    "55P03": Meaning.RACE,  # a lock was not available with NOWAIT
    "57": Meaning.AWAY,  # shut down, crashed, starting up, cancelled, dropped
    "58": Meaning.AWAY,  # system error, such as I/O
    "72": Meaning.RACE,  # the snapshot is too old
    "F0": Meaning.AWAY,  # the server's configuration is broken
    "XX": Meaning.AWAY,  # internal error, or corrupted data or index: wait for a restore or a fail-over
}
OUTDATED_PLAN = "InvalidCachedStatementError"  # a table was altered since the statement was prepared

RESULT_CODES: Final[dict[int, Meaning]] = {
    sqlite3.SQLITE_PERM: Meaning.AWAY,
    sqlite3.SQLITE_BUSY: Meaning.AWAY,  # another process has locked the file for longer than BUSY_SECONDS
    sqlite3.SQLITE_LOCKED: Meaning.AWAY,
    sqlite3.SQLITE_NOMEM: Meaning.AWAY,
    sqlite3.SQLITE_READONLY: Meaning.AWAY,  # the disk is mounted read-only, or the file was moved
    sqlite3.SQLITE_INTERRUPT: Meaning.AWAY,
    sqlite3.SQLITE_IOERR: Meaning.AWAY,
    sqlite3.SQLITE_CORRUPT: Meaning.AWAY,  # wait until an operator restores the file
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
    """Return the PostgreSQL SQLSTATE of an error, or an empty string."""
    return getattr(getattr(error, "orig", None) or error, "sqlstate", None) or ""


def result_code(error: BaseException) -> int:
    """Return the SQLite primary result code of an error, or 0."""
    return int(getattr(getattr(error, "orig", None) or error, "sqlite_errorcode", 0)) & 0xFF


def meaning(error: BaseException) -> Meaning:
    """Return what an exception of a driver or of SQLAlchemy means."""
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
    # Errors without a code do not come from the server: the connection was lost, or could not be opened.
    return Meaning.AWAY if isinstance(error, OSError | exc.TimeoutError) else Meaning.BUG


def misses_something(error: BaseException) -> bool:
    """Return True if a database error may come from a schema that a newer migration has changed, such as a
    missing table or column.
    """
    if sqlstate(error) in ("42P01", "42703", "42883", "42P10", "23502"):
        return True
    text = str(getattr(error, "orig", None) or error)
    missing = ("no such table", "no such column", "has no column", "NOT NULL constraint failed")
    return bool(result_code(error)) and any(part in text for part in missing)


def explained(error: Exception, database: str) -> Exception:
    """Return the exception to raise for a database error: Conflict for a lost race, Unavailable for an
    outage, IntegrityError for a violated constraint, and the error itself for a defect.
    """
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
        return "all connections remained busy for too long"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return f"no connection: {reason(error)}"


def reason(error: BaseException) -> str:
    """Return why a database failed, on one line, without SQLAlchemy's additions."""
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
    """The type of decorators that retry a coroutine function after a Conflict."""

    def __call__(self, work: Callable[P, Awaitable[T]], /) -> Callable[P, Awaitable[T]]: ...


@overload
def retrying(clock: Clock | None = None, *, attempts: int = ATTEMPTS) -> RunsAgain: ...


@overload
def retrying(
    clock: Clock | None = None, *, attempts: int = ATTEMPTS, otherwise: Callable[P, T]
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]: ...


def retrying(
    clock: Clock | None = None, *, attempts: int = ATTEMPTS, otherwise: Callable[P, T] | None = None
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
    """Return a decorator that retries a function after a Conflict (a lost race), with growing random pauses.

    After the last attempt the Conflict is raised, or `otherwise` is called with the same arguments and its
    result returned. The clock's random source decides the pauses. Decorate the function that opens the
    transaction.
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
                return await work(*args, **kwargs)  # usually succeeds; needs no retry state
            except Conflict as lost:
                losses = [lost]
                LOST_RACES.inc()

            async def again(*args: P.args, **kwargs: P.kwargs) -> T:
                if losses:
                    raise losses.pop()
                return await work(*args, **kwargs)

            return await patiently(again)(*args, **kwargs)

        return run

    return retried

"""The meaning of database errors, as a table of all SQLSTATEs and SQLite codes."""

import sqlite3
from typing import Any

import asyncpg
import pytest
from sqlalchemy import exc

from bus.errors import Unavailable
from bus.sql.failures import RESULT_CODES, SQLSTATES, Conflict, Meaning, explained, meaning

# All that are not in here are bugs, whatever their class.
RACES = "40000 40001 40P01 55P03 72000"
AWAY = """
    08000 08001 08003 08004 08006 08007 08P01
    25006 25P03 25P04 26000 28000 28P01 3D000 40003 42501
    53000 53100 53200 53300 53400 55000 55006
    57000 57014 57P01 57P02 57P03 57P04 57P05
    58000 58030 58P01 58P02 58P03
    F0000 F0001 XX000 XX001 XX002
"""
RULES = "23000 23001 23502 23503 23505 23514 23P01 40002"
EXPECTED = {
    state: kind
    for kind, states in ((Meaning.RACE, RACES), (Meaning.AWAY, AWAY), (Meaning.RULE, RULES))
    for state in states.split()
}


def every_sqlstate() -> set[str]:
    known = (getattr(kind, "sqlstate", None) for kind in vars(asyncpg.exceptions).values())
    return {state for state in known if isinstance(state, str) and len(state) == 5}


def a_postgres_error(state: str) -> asyncpg.PostgresError:
    error = asyncpg.PostgresError("the server's words")
    error.sqlstate = state
    return error


@pytest.mark.parametrize("state", sorted(every_sqlstate() | EXPECTED.keys()))
def test_every_sqlstate_has_its_meaning(state: str) -> None:
    error = a_postgres_error(state)
    expected = EXPECTED.get(state, Meaning.BUG)
    assert meaning(error) is expected
    assert meaning(exc.DBAPIError("SELECT", None, error)) is expected  # as SQLAlchemy hands it on


def test_every_class_of_sqlstates_that_is_listed_is_one_the_server_may_send() -> None:
    assert all(any(state.startswith(listed) for state in every_sqlstate()) for listed in SQLSTATES)


def test_a_statement_prepared_before_a_table_was_altered_is_prepared_again() -> None:
    error = asyncpg.exceptions.InvalidCachedStatementError("cached statement plan is invalid")
    assert meaning(error) is Meaning.RACE


CODES = {
    "PERM": Meaning.AWAY, "BUSY": Meaning.AWAY, "LOCKED": Meaning.AWAY, "NOMEM": Meaning.AWAY,
    "READONLY": Meaning.AWAY, "INTERRUPT": Meaning.AWAY, "IOERR": Meaning.AWAY, "CORRUPT": Meaning.AWAY,
    "FULL": Meaning.AWAY, "CANTOPEN": Meaning.AWAY, "PROTOCOL": Meaning.AWAY, "SCHEMA": Meaning.RACE,
    "CONSTRAINT": Meaning.RULE, "NOLFS": Meaning.AWAY, "AUTH": Meaning.AWAY, "NOTADB": Meaning.AWAY,
    "ERROR": Meaning.BUG, "INTERNAL": Meaning.BUG, "ABORT": Meaning.BUG, "TOOBIG": Meaning.BUG,
    "MISMATCH": Meaning.BUG, "MISUSE": Meaning.BUG, "RANGE": Meaning.BUG, "FORMAT": Meaning.BUG,
    # with what SQLite adds to its code
    "BUSY_SNAPSHOT": Meaning.AWAY, "READONLY_DBMOVED": Meaning.AWAY, "IOERR_WRITE": Meaning.AWAY,
    "IOERR_FSYNC": Meaning.AWAY, "CONSTRAINT_UNIQUE": Meaning.RULE, "CORRUPT_INDEX": Meaning.AWAY,
}  # fmt: skip


@pytest.mark.parametrize(("code", "expected"), CODES.items(), ids=CODES)
def test_every_code_of_sqlite_has_its_meaning(code: str, expected: Meaning) -> None:
    error = sqlite3.OperationalError("sqlite's words")
    error.sqlite_errorcode = getattr(sqlite3, f"SQLITE_{code}")
    assert meaning(error) is expected
    assert meaning(exc.OperationalError("SELECT", None, error)) is expected


def test_the_codes_of_sqlite_are_all_decided() -> None:
    decided = {getattr(sqlite3, f"SQLITE_{code}") for code in CODES}
    assert RESULT_CODES.keys() <= decided


SAID: list[tuple[Exception, type[Exception], str]] = [
    (a_postgres_error("40001"), Conflict, "db: the server's words"),
    (a_postgres_error("25006"), Unavailable, "db: the server's words"),
    (a_postgres_error("23505"), exc.IntegrityError, "the server's words"),
    (sqlite3.IntegrityError("UNIQUE"), sqlite3.IntegrityError, "UNIQUE"),
    (ConnectionRefusedError(111, "x"), Unavailable, "db: no connection: connection refused"),
    (TimeoutError(), Unavailable, "db: no answer in time"),
    (exc.TimeoutError("pool"), Unavailable, "db: all connections are busy and none came free in time"),
    (KeyError("mine"), KeyError, "'mine'"),
]


@pytest.mark.parametrize(("error", "kind", "words"), SAID, ids=[type(one[0]).__name__ for one in SAID])
def test_callers_meet_it_under_one_name(error: Exception, kind: type[Exception], words: str) -> None:
    found: Any = explained(error, "db")
    assert type(found) is kind
    assert words in str(found)

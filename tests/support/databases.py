"""Opens databases of both kinds, reads their internals, and writes inconsistent data into a
berth's SQLite files.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from berth.settings import Settings
from bus.sql.database import Database
from bus.sql.statement import PostgresTransaction
from tests.support.ids import uid

EVERY_WAY = [
    pytest.param("sqlite file", id="file"),
    pytest.param("sqlite file inline", id="file-inline"),
    pytest.param("sqlite memory", id="memory"),
    pytest.param("sqlite memory inline", id="memory-inline"),
    pytest.param("postgresql", id="postgresql", marks=pytest.mark.services),
]


def inline_connection(database: Database) -> sqlite3.Connection:
    """Return the only connection of an in-memory database without a thread; it shows uncommitted writes."""
    file = database._file
    assert file is not None and file.inline and file.memory is not None
    return file.memory


def sql(settings: Settings, store: str, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(Path(settings.database.state_dir) / f"{store}.db")) as database, database:
        assert database.execute(statement, values).rowcount > 0


def insert_build(settings: Settings, cell: str, number: int, status: str, host: int) -> None:
    """Insert a build on a host into the database of the cell's conductor."""
    values = (uid(number), 1, status, 1, 1, 0.0, 0.0, "[]")
    columns = "id, version, status, attempt, generation, deadline, updated_at, story"
    marks = ", ".join("?" for _ in values)
    sql(settings, f"cell_{cell}", f"INSERT INTO builds ({columns}) VALUES ({marks})", *values)
    place = (
        "INSERT INTO placed_builds (build, root, host, project, name, placed) VALUES (?, ?, '', '', '', '')"
    )
    sql(settings, f"cell_{cell}", place, uid(number), uid(host, "a"))


def recorded_statements(patch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that receives each statement that is sent to PostgreSQL from now on."""
    statements: list[str] = []
    fetch = PostgresTransaction.fetch

    async def recorded(self: PostgresTransaction, sql: str, values: Sequence[Any]) -> Sequence[Any]:
        statements.append(sql)
        return await fetch(self, sql, values)

    patch.setattr(PostgresTransaction, "fetch", recorded)
    return statements

"""Quicker databases for tests: the statements of migrations are repeated for further empty databases without
alembic, and SQLite runs without threads.
"""

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event

from bus.sql import migrations
from bus.sql.database import Database

_ROOT = Path(__file__).parents[2]
_Upgrade = Callable[[Connection, Path, Sequence[str], Sequence[str]], str]
_recorded: dict[tuple[Path, str], tuple[list[tuple[str, Any]], str]] = {}


def repeat_migrations() -> None:
    """Make `migrate` record the statements for an empty database, and repeat them for later databases."""
    if not isinstance(migrations._upgrade, partial):
        migrations._upgrade = partial(_upgrade, migrations._upgrade)


_open = Database.__init__


def run_sqlite_inline(inline: bool) -> None:
    """Run SQLite on the event loop's thread unless its caller says otherwise: two thread switches a statement
    take as long as the statement.
    """
    setattr(Database, "__init__", _open_inline if inline else _open)  # noqa: B010


def _open_inline(database: Database, url: str, **options: Any) -> None:
    if url.startswith("sqlite") and "pause" not in options:
        options = {"inline": True, **options}
    _open(database, url, **options)


def _upgrade(
    original: _Upgrade, connection: Connection, folder: Path, names: Sequence[str], missing: Sequence[str]
) -> str:
    dialect = connection.dialect.name
    if missing != names or _ROOT not in folder.parents:
        return original(connection, folder, names, missing)
    if (folder, dialect) not in _recorded:
        statements: list[tuple[str, Any]] = []

        def record(_c: Any, _cursor: Any, statement: str, parameters: Any, *_more: Any) -> None:
            if not statement.lstrip().upper().startswith(("SELECT", "PRAGMA")):
                statements.append((statement, parameters))

        event.listen(connection, "before_cursor_execute", record)
        oldest = original(connection, folder, names, missing)
        event.remove(connection, "before_cursor_execute", record)
        _recorded[folder, dialect] = statements, oldest
        return oldest
    statements, oldest = _recorded[folder, dialect]
    adapted: Any = connection.connection.dbapi_connection
    if dialect == "postgresql":
        adapted.run_async(lambda driver: _execute_all(driver, statements))
    else:
        adapted.run_async(lambda driver: driver.call(_execute, driver.raw, statements))
    return oldest


async def _execute_all(driver: Any, statements: list[tuple[str, Any]]) -> None:
    for statement, parameters in statements:
        await driver.execute(statement, *parameters)


def _execute(raw: sqlite3.Connection, statements: list[tuple[str, Any]]) -> None:
    for statement, parameters in statements:
        raw.execute(statement, parameters)

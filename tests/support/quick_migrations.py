"""Repeats the statements of migrations for further empty databases, which is faster than alembic."""

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event

from bus.sql import migrations

_ROOT = Path(__file__).parents[2]
_Upgrade = Callable[[Connection, Path, Sequence[str], Sequence[str]], str]
_recorded: dict[tuple[Path, str], tuple[list[tuple[str, Any]], str]] = {}


def repeat_migrations() -> None:
    """Make `migrate` record the statements for an empty database, and repeat them for later databases."""
    if not isinstance(migrations._upgrade, partial):
        migrations._upgrade = partial(_upgrade, migrations._upgrade)


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

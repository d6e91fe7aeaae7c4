"""Creates the tables of a worker's new database: migrations run once, and their statements are repeated.

This takes a fraction of the processor time; contract/test_migrations.py compares the results.
"""

import sqlite3
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event, text
from sqlalchemy.util import await_only

from bus.sql import migrations

Upgrade = Callable[[Connection, Path, list[str]], str]  # gives the oldest migration that code must know
Statements = list[tuple[str, Any]]  # statements, and their parameters

PACKAGES = ("placement_worker", "cell_conductor", "scheduler_worker", "nova_bridge")
BY_ALEMBIC: Upgrade = migrations._upgrade
_MIGRATIONS = {Path(__file__).parents[2] / package / "migrations" for package in PACKAGES}


def replaying(upgrade: Upgrade) -> Upgrade:
    """In place of `bus.sql.migrations._upgrade`; what is no new database of a worker's goes its way."""
    known: dict[tuple[Path, str], tuple[str, Statements]] = {}

    def upgraded(connection: Connection, folder: Path, names: list[str]) -> str:
        which = folder.resolve(), connection.dialect.name
        if which[0] not in _MIGRATIONS or _has_revision(connection):
            return upgrade(connection, folder, names)
        if which not in known:
            known[which] = _recorded(upgrade, connection, folder, names)
            return known[which][0]
        oldest, said = known[which]
        raw = connection.connection.driver_connection
        assert raw is not None
        if connection.dialect.name == "postgresql":
            for has_some, several in groupby(said, key=lambda one: bool(one[1])):
                if has_some:
                    for statement, parameters in several:
                        await_only(raw.execute(statement, *parameters))
                else:
                    await_only(raw.execute(";\n".join(statement for statement, _ in several)))
        else:
            await_only(raw.call(_replay, raw.raw, said))
        return oldest

    return upgraded


def _has_revision(connection: Connection) -> bool:
    table = "alembic_version"  # on PostgreSQL it exists before the first migration, without a row
    return connection.dialect.has_table(connection, table) and bool(
        connection.execute(text(f"SELECT 1 FROM {table}")).first()
    )


def _recorded(
    upgrade: Upgrade, connection: Connection, folder: Path, names: list[str]
) -> tuple[str, Statements]:
    said: Statements = []

    def handle(_: Any, __: Any, statement: str, parameters: Any, ___: Any, many: bool) -> None:
        if not statement.lstrip().startswith(("SELECT", "PRAGMA")):
            said.extend((statement, values) for values in (parameters if many else [parameters]))

    event.listen(connection, "before_cursor_execute", handle)
    try:
        return upgrade(connection, folder, names), said
    finally:
        event.remove(connection, "before_cursor_execute", handle)


def _replay(raw: sqlite3.Connection, said: Statements) -> None:
    for statement, parameters in said:
        (raw.executemany if isinstance(parameters, list) else raw.execute)(statement, parameters)

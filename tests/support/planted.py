"""Writes inconsistent data into the SQLite databases of a berth, as a defect or another version might."""

import sqlite3
from contextlib import closing
from pathlib import Path

from berth.settings import Settings
from tests.support.ids import uid


def sql(settings: Settings, store: str, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(Path(settings.database.state_dir) / f"{store}.db")) as database, database:
        assert database.execute(statement, values).rowcount > 0


def know(settings: Settings, cell: str, number: int, status: str, host: int) -> None:
    """Have this cell know this build, on this host."""
    values = (uid(number), 1, status, uid(host, "a"), 1, 1, 0.0, 0.0, "", "[]", "")
    columns = "id, version, status, root, attempt, generation, deadline, said, placed, story, leftovers"
    marks = ", ".join("?" for _ in values)
    sql(settings, f"cell_{cell}", f"INSERT INTO builds ({columns}) VALUES ({marks})", *values)

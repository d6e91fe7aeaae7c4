"""Opens databases of both kinds, and gives tests access to internals of a database."""

import sqlite3

import pytest

from bus.sql.database import Database

EVERY_WAY = [
    pytest.param("sqlite file", id="file"),
    pytest.param("sqlite file inline", id="file-inline"),
    pytest.param("sqlite memory", id="memory"),
    pytest.param("sqlite memory inline", id="memory-inline"),
    pytest.param("postgresql", id="postgresql", marks=pytest.mark.services),
]


def inline_connection(database: Database) -> sqlite3.Connection:
    """An inline memory's one connection. It shows uncommitted writes too."""
    file = database._file
    assert file is not None and file.inline and file.memory is not None
    return file.memory

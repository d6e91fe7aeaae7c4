"""What tests see of a database that berth does not show."""

import sqlite3

from bus.sql.database import Database


def inline_connection(database: Database) -> sqlite3.Connection:
    """An inline memory's one connection. It shows uncommitted writes too."""
    file = database._file
    assert file is not None and file.inline and file.memory is not None
    return file.memory

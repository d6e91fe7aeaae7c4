"""The tables given to tests equal those that migrations create."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, inspect, text

from bus.sql import migrations
from bus.sql.database import Database
from tests.support.databases import EVERY_WAY
from tests.support.schemas import BY_ALEMBIC, PACKAGES, replaying

DATABASES = EVERY_WAY


def described(connection: Connection) -> dict[str, Any]:
    """All that can be asked about tables, and what is in them."""
    asked = inspect(connection)
    found: dict[str, Any] = {}
    for table in sorted(asked.get_table_names()):
        found[table] = {
            "columns": [{**column, "type": str(column["type"])} for column in asked.get_columns(table)],
            "primary key": asked.get_pk_constraint(table),
            "indexes": sorted(
                str({**index, "dialect_options": {k: str(v) for k, v in index["dialect_options"].items()}})
                for index in asked.get_indexes(table)
            ),
            "unique": asked.get_unique_constraints(table),
            "checks": asked.get_check_constraints(table),
            "foreign keys": asked.get_foreign_keys(table),
            "rows": [tuple(row) for row in connection.execute(text(f'SELECT * FROM "{table}"'))],
        }
    return found


@pytest.mark.parametrize("package", PACKAGES)
async def test_replayed_statements_make_what_migrations_make(
    opening: dict[str, Any],
    open_database: Callable[..., Database],
    package: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def upgrade(*given: Any) -> str:
        asked.append(given)
        return BY_ALEMBIC(*given)

    monkeypatch.setattr(migrations, "_upgrade", replaying(upgrade))
    found = []
    for number in range(2):
        if "sqlite" in opening["url"]:
            where = opening["url"].replace("/new/", f"/new-{number}/")
            database = open_database(url=where)
        else:
            database = open_database(namespace=f"{opening['namespace']}-{number}")
        assert await migrations.migrate(database, package)
        async with database.read() as tx:
            found.append(await tx.connection.run_sync(described))
    assert found[0] == found[1]
    assert len(asked) == 1
    assert found[0]["alembic_version"]["rows"][0][0].startswith("0")

"""Creates the tables of migrations whose columns are never NULL."""

from typing import Any

import sqlalchemy as sa
from alembic import op


def columns(type_: Any, *names: str, **options: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, type_, nullable=False, **options) for name in names]


def table(name: str, *given: list[sa.Column[Any]], keys: int = 1) -> None:
    """Create a table. The first `keys` columns are its primary key."""
    listed = [column for some in given for column in some]
    key = sa.PrimaryKeyConstraint(*(column.name for column in listed[:keys]))
    op.create_table(name, *listed, key)

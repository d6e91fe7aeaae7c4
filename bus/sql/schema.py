"""Creates the tables and indexes of migrations. Columns are never NULL unless a migration says so."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import SchemaItem


def columns(type_: Any, *names: str, nullable: bool = False, **options: Any) -> list[sa.Column[Any]]:
    """Return columns of one type, NOT NULL unless `nullable`."""
    return [sa.Column(name, type_, nullable=nullable, **options) for name in names]


def table(name: str, *given: Sequence[SchemaItem], keys: int = 1, **options: Any) -> None:
    """Create a table. The first `keys` columns are its primary key."""
    listed = [item for some in given for item in some]
    named = [item.name for item in listed[:keys] if isinstance(item, sa.Column)]
    op.create_table(name, *listed, sa.PrimaryKeyConstraint(*named), **options)


def index(table: str, name: str, *of: str, where: str = "", unique: bool = False) -> None:
    """Create an index of columns. With `where`, only rows that meet this condition are in the index."""
    dialects = ("postgresql", "sqlite") if where else ()
    partial: dict[str, Any] = {f"{dialect}_where": sa.text(where) for dialect in dialects}
    op.create_index(
        name, table, [sa.text(each) if " " in each else each for each in of], unique=unique, **partial
    )

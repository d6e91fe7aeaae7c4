"""The first schema of moves in the database of a conductor."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001_first"
down_revision = None


def _columns(type_: Any, *names: str, **options: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, type_, nullable=False, **options) for name in names]


def _index(name: str, *columns: str, where: str = "") -> None:
    dialects = ("postgresql", "sqlite") if where else ()
    partial: dict[str, Any] = {f"{dialect}_where": sa.text(where) for dialect in dialects}
    op.create_index(name, name.partition("_")[0], [*columns], **partial)


def upgrade() -> None:
    op.create_table(
        "moves",
        *_columns(sa.Text, "id", primary_key=True),
        # `source` and `host`: names of hosts
        *_columns(sa.Text, "build", "kind", "status", "phase", "source", "host"),
        *_columns(sa.Double, "since", "ended"),
        *_columns(sa.Text, "placed", "story"),  # placed: the MovePlaced as received; story: the BuildMove
    )
    _index("moves_build", "build")
    _index("moves_since", "since", "id")
    _index("moves_open", "since", "id", where="status = 'open'")
    _index("moves_ended", "ended", where="status = 'ended'")

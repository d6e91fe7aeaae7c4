"""The first schema: builds and removed agents."""

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
    # The state of builds, which each step writes. PostgreSQL logs the new version of a row only from the
    # first to the last changed column, if it fits into the old page. So the long `story` is last.
    op.create_table(
        "builds",
        *_columns(sa.Text, "id", primary_key=True),
        *_columns(sa.BigInteger, "version"),
        *_columns(sa.Double, "deadline", "updated_at"),  # updated_at: last change or repetition of messages
        sa.Column("generation", sa.BigInteger),  # consumer generation in placement
        *_columns(sa.Integer, "attempt"),
        *_columns(sa.Text, "status"),
        *_columns(sa.Text, "leftovers", "parts", server_default=""),
        *_columns(sa.Text, "story"),  # fields that no query filters by, as JSON
        postgresql_with={"fillfactor": 70},
    )
    # Partial indexes without settled builds, because most builds are settled.
    _index("builds_unsettled", "deadline", where="status IN ('building', 'swapping', 'deleting')")
    _index("builds_over", "updated_at", where="status IN ('error', 'deleted')")
    _index("builds_leftover", "deadline", where="status IN ('active', 'error', 'deleted') AND deadline > 0")
    _index("builds_left_behind", "id", where="leftovers <> ''")
    statuses = "'building', 'swapping', 'active', 'held', 'error', 'deleting', 'deleted'"
    _index("builds_held", "deadline", where=f"status NOT IN ({statuses})")  # a course has these builds
    # Large and indexed data of builds, written once, and again if the host changes.
    op.create_table(
        "placed_builds",
        *_columns(sa.Text, "build", primary_key=True),
        *_columns(sa.Text, "root", "host", "project", "name"),  # `root` and `host`: the current or last host
        *_columns(sa.Text, "placed"),  # the BuildPlaced as received
    )
    op.create_index("placed_builds_project", "placed_builds", ["project", "build"])
    for name in ("host", "root"):
        op.create_index(f"placed_builds_{name}", "placed_builds", [name])
    named = sa.text("name <> ''")
    op.create_index(
        "placed_builds_name", "placed_builds", ["name", "build"], postgresql_where=named, sqlite_where=named
    )
    op.create_table(
        "removed_agents",  # agents that operators removed from the cell
        *_columns(sa.Text, "agent", primary_key=True),
        *_columns(sa.Double, "since"),
    )
    op.create_table(
        "assumed_guests",  # guests of removed agents that count as destroyed without a report
        *_columns(sa.Text, "build", primary_key=True),
        *_columns(sa.BigInteger, "attempt", primary_key=True),
        *_columns(sa.Text, "root", primary_key=True),
        *_columns(sa.Text, "host", "agent"),
        *_columns(sa.Double, "since"),
    )

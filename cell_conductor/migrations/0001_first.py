"""The first schema."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001_first"
down_revision = None


def _where(condition: str) -> dict[str, Any]:
    return {"postgresql_where": sa.text(condition), "sqlite_where": sa.text(condition)}


def upgrade() -> None:
    op.create_table(
        "builds",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("generation", sa.BigInteger),
        sa.Column("deadline", sa.Double, nullable=False),
        sa.Column("said", sa.Double, nullable=False),
        sa.Column("placed", sa.Text, nullable=False),
        sa.Column("story", sa.Text, nullable=False),
        sa.Column("leftovers", sa.Text, server_default="", nullable=False),
        sa.Column("host", sa.Text, server_default="", nullable=False),
        sa.Column("project", sa.Text, server_default="", nullable=False),
        sa.Column("name", sa.Text, server_default="", nullable=False),
        sa.Column("moved", sa.Text, server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("builds_host", "builds", ["host", "id"])
    op.create_index("builds_left_behind", "builds", ["id"], **_where("leftovers <> ''"))
    op.create_index(
        "builds_leftover",
        "builds",
        ["deadline"],
        **_where("status IN ('active', 'error', 'deleted') AND deadline > 0"),
    )
    op.create_index(
        "builds_moving",
        "builds",
        ["deadline"],
        **_where("status IN ('moving', 'verifying', 'shelved', 'moved')"),
    )
    op.create_index("builds_name", "builds", ["name", "id"], **_where("name <> ''"))
    op.create_index("builds_over", "builds", ["said"], **_where("status IN ('error', 'deleted', 'moved')"))
    op.create_index("builds_project", "builds", ["project", "id"])
    op.create_index("builds_root", "builds", ["root", "id"])
    op.create_index(
        "builds_unsettled",
        "builds",
        ["status", "deadline"],
        **_where("status IN ('building', 'swapping', 'deleting')"),
    )
    op.create_table(
        "moves",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("build", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("since", sa.Double, nullable=False),
        sa.Column("ended", sa.Double, nullable=False),
        sa.Column("placed", sa.Text, nullable=False),
        sa.Column("story", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("moves_build", "moves", ["build"])
    op.create_index("moves_ended", "moves", ["ended"], **_where("status = 'ended'"))
    op.create_index("moves_open", "moves", ["since", "id"], **_where("status = 'open'"))
    op.create_index("moves_since", "moves", ["since", "id"])
    op.create_table(
        "ring_members",
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("run", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("beat", sa.BigInteger, nullable=False),
        sa.Column("alive", sa.Boolean, nullable=False),
        sa.Column("disabled", sa.Boolean, nullable=False),
        sa.Column("lease", sa.Double, nullable=False),
        sa.Column("seen", sa.BigInteger, nullable=False),
        sa.Column("heard", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("agent"),
    )
    op.create_table(
        "ring_nodes",
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("leaving", sa.Text, nullable=False),
        sa.Column("moves_to", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("root"),
    )
    op.create_index("ring_nodes_changed", "ring_nodes", ["pool", "version"])
    op.create_index("ring_nodes_owner", "ring_nodes", ["owner"])
    op.create_table(
        "ring_pools",
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("pool"),
    )

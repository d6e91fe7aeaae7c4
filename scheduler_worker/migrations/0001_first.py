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
        "client_projects",
        sa.Column("client", sa.Text, nullable=False),
        sa.Column("project", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("client", "project"),
    )
    op.create_table(
        "decided_builds",
        sa.Column("build", sa.Text, nullable=False),
        sa.Column("decision", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("build"),
    )
    op.create_index("decided_builds_decision", "decided_builds", ["decision"])
    op.create_table(
        "decisions",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("decision", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("move", sa.Text, server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("decisions_at", "decisions", ["at"])
    op.create_index("decisions_request", "decisions", ["request"])
    op.create_table(
        "handovers",
        sa.Column("move", sa.Text, nullable=False),
        sa.Column("build", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("story", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("move"),
    )
    op.create_index("handovers_state", "handovers", ["state", "at"])
    op.create_table(
        "host_health",
        sa.Column("cell", sa.Text, nullable=False),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("health", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("cell", "root"),
    )
    op.create_table(
        "moving_builds",
        sa.Column("build", sa.Text, nullable=False),
        sa.Column("move", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("build"),
    )
    op.create_index("moving_builds_move", "moving_builds", ["move"])
    op.create_table(
        "parked",
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("since", sa.Double, nullable=False),
        sa.Column("until", sa.Double, nullable=False),
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("flavor", sa.Text, nullable=False),
        sa.Column("instances", sa.Integer, nullable=False),
        sa.Column("seen", sa.BigInteger, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("lacks", sa.Text, nullable=False),
        sa.Column("wakes", sa.Text, nullable=False),
        sa.Column("decision", sa.Text, nullable=False),
        sa.Column("cancelled", sa.Text, server_default="", nullable=False),
        sa.Column("story", sa.Text, server_default="", nullable=False),
        sa.Column("move", sa.Text, server_default="", nullable=False),
        sa.PrimaryKeyConstraint("request"),
    )
    op.create_index("parked_cancelled", "parked", ["owner"], **_where("cancelled <> ''"))
    op.create_index("parked_owner", "parked", ["owner"])
    op.create_table(
        "parked_builds",
        sa.Column("build", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("build"),
    )
    op.create_index("parked_builds_request", "parked_builds", ["request"])
    op.create_table(
        "schedulers",
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("beat", sa.BigInteger, nullable=False),
        sa.Column("reserved", sa.Text, nullable=False),
        sa.Column("rescued", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("owner"),
    )

    op.create_index("parked_line", "parked", ["kind", sa.text("priority DESC"), "since"])

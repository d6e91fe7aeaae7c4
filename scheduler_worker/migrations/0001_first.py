"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "parked",
        sa.Column("request", sa.Text, primary_key=True),
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
        sa.Column("cancelled", sa.Text, nullable=False, server_default=""),
    )
    op.create_index("parked_owner", "parked", ["owner"])
    op.create_index("parked_line", "parked", ["kind", sa.text("priority DESC"), "since"])
    cancelled = sa.text("cancelled <> ''")
    op.create_index(
        "parked_cancelled", "parked", ["owner"], postgresql_where=cancelled, sqlite_where=cancelled
    )
    op.create_table(
        "parked_builds",
        sa.Column("build", sa.Text, primary_key=True),
        sa.Column("request", sa.Text, nullable=False),
    )
    op.create_index("parked_builds_request", "parked_builds", ["request"])
    op.create_table(
        "decisions",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("decision", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )
    op.create_index("decisions_request", "decisions", ["request"])
    op.create_index("decisions_at", "decisions", ["at"])
    op.create_table(
        "decided_builds",
        sa.Column("build", sa.Text, primary_key=True),
        sa.Column("decision", sa.Text, nullable=False),
    )
    op.create_index("decided_builds_decision", "decided_builds", ["decision"])
    op.create_table(
        "schedulers",
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("beat", sa.BigInteger, nullable=False),
        sa.Column("reserved", sa.Text, nullable=False),
        sa.Column("rescued", sa.BigInteger, nullable=False),
    )

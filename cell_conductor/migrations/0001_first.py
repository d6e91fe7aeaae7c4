"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "builds",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("generation", sa.BigInteger),
        sa.Column("deadline", sa.Double, nullable=False),
        sa.Column("said", sa.Double, nullable=False),
        sa.Column("placed", sa.Text, nullable=False),
        sa.Column("story", sa.Text, nullable=False),
    )
    unsettled = sa.text("status IN ('building', 'swapping', 'deleting')")
    op.create_index(
        "builds_unsettled",
        "builds",
        ["status", "deadline"],
        postgresql_where=unsettled,
        sqlite_where=unsettled,
    )
    over = sa.text("status IN ('error', 'deleted')")
    op.create_index("builds_over", "builds", ["said"], postgresql_where=over, sqlite_where=over)

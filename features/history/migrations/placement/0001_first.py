"""The first migration: archived snapshots and changes."""

import sqlalchemy as sa
from alembic import op

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "archived_snapshots",
        # number of the last change in the snapshot
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "archived_changes",
        sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("last", sa.BigInteger, nullable=False),
        sa.Column("began", sa.Double, nullable=False),  # the times of the first and the last change
        sa.Column("ended", sa.Double, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )

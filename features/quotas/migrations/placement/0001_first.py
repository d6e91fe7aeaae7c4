"""The first migration: the limits of projects."""

import sqlalchemy as sa
from alembic import op

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "quotas",  # the project "" has the default limits
        sa.Column("project", sa.String(255), primary_key=True),
        sa.Column("resource", sa.String(255), primary_key=True),
        sa.Column("most", sa.BigInteger, nullable=False),  # the limit; -1: unlimited
    )

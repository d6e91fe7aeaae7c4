"""Counts of schedulers that ended while they evaluated a stored request."""

import sqlalchemy as sa
from alembic import op

revision = "0002_strikes"
down_revision = "0001_first"


def upgrade() -> None:
    for table in ("backlog", "parked"):
        op.add_column(table, sa.Column("strikes", sa.Integer, nullable=False, server_default="0"))

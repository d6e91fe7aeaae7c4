"""Stores the pace at which each scheduler serves the backlog of each project."""

import sqlalchemy as sa
from alembic import op

revision = "0006_paces"
down_revision = "0005_exchanges"


def upgrade() -> None:
    op.add_column("schedulers", sa.Column("paces", sa.Text, nullable=False, server_default=""))

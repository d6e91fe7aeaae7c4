"""Stores for which project, and since when, each scheduler reserves hosts for waiting requests."""

import sqlalchemy as sa
from alembic import op

revision = "0007_holds"
down_revision = "0006_paces"


def upgrade() -> None:
    op.add_column("schedulers", sa.Column("holds", sa.Text, nullable=False, server_default=""))

"""Hosts that are down or closed, for a scheduler that starts."""

import sqlalchemy as sa
from alembic import op

revision = "0005_host_health"
down_revision = "0004_handovers"


def upgrade() -> None:
    op.create_table(
        "host_health",
        sa.Column("cell", sa.Text, primary_key=True),
        sa.Column("root", sa.Text, primary_key=True),
        sa.Column("health", sa.Text, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("host_health")

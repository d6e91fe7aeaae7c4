"""The agents that operators removed, and the guests that are assumed to be destroyed since."""

import sqlalchemy as sa
from alembic import op

revision = "0002_removed_agents"
down_revision = "0001_first"


def upgrade() -> None:
    op.create_table(
        "removed_agents",
        sa.Column("agent", sa.Text, primary_key=True),
        sa.Column("since", sa.Double, nullable=False),
    )
    op.create_table(
        "assumed_guests",
        sa.Column("build", sa.Text, primary_key=True),
        sa.Column("attempt", sa.BigInteger, primary_key=True),
        sa.Column("root", sa.Text, primary_key=True),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("since", sa.Double, nullable=False),
    )

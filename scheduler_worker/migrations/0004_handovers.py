"""Moves from one cell to another: the orders that both halves go by."""

import sqlalchemy as sa
from alembic import op

revision = "0004_handovers"
down_revision = "0003_moves"


def upgrade() -> None:
    op.create_table(
        "handovers",
        sa.Column("move", sa.Text, primary_key=True),
        sa.Column("build", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("story", sa.Text, nullable=False),
    )
    op.create_index("handovers_state", "handovers", ["state", "at"])


def downgrade() -> None:
    op.drop_table("handovers")

"""The first schema of moves in the database of schedulers: moves between cells."""

import sqlalchemy as sa
from alembic import op

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "handovers",
        sa.Column("move", sa.Text, primary_key=True),
        sa.Column("build", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),  # when the state was last changed or published
        sa.Column("story", sa.Text, nullable=False),  # the `Handover` as JSON
    )
    op.create_index("handovers_state", "handovers", ["state", "at"])

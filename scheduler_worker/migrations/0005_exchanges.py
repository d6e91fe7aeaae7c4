"""Exchanges of two instances whose moves have not both ended yet."""

import sqlalchemy as sa
from alembic import op

revision = "0005_exchanges"
down_revision = "0004_acts"


def upgrade() -> None:
    op.create_table(
        "open_exchanges",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("due", sa.Double, nullable=False),  # a scheduler checks it after this time
        sa.Column("half_done", sa.Boolean, nullable=False),  # the first instance is to be moved back
        sa.Column("record", sa.Text, nullable=False),  # the GuardExchange
    )

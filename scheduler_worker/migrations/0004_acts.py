"""The audit trail, and the roles of clients."""

import sqlalchemy as sa
from alembic import op

revision = "0004_acts"
down_revision = "0003_capacity"

TEXTS = (
    "operator", "role", "operator_project", "door", "act", "target", "target_name", "project", "request",
    "outcome", "record",  # the ActRecord
)  # fmt: skip


def upgrade() -> None:
    op.create_table(
        "acts",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("program", sa.Boolean, nullable=False),  # true if a client or service requested the act
        sa.Column("finality", sa.Integer, nullable=False),  # never replaced by a lower value
        *(sa.Column(name, sa.Text, nullable=False) for name in TEXTS),
    )
    op.create_index("acts_at", "acts", ["at", "id"])
    op.create_index("acts_program", "acts", ["program", "at"])
    op.create_index("acts_operator", "acts", ["operator", "at"])
    op.create_index("acts_target", "acts", ["target", "at"])
    op.create_table(
        "client_roles",
        sa.Column("client", sa.Text, primary_key=True),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("cells", sa.Text, nullable=False),  # a JSON list; empty: all cells
    )

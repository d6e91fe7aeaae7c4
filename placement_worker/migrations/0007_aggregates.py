"""Add names and metadata of aggregates, and log their changes.

Processes from before this migration continue: they publish the log without aggregates, and a reader of a
change without content reads the log.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007_aggregates"
down_revision = "0006_server_groups"


def upgrade() -> None:
    op.add_column("aggregates", sa.Column("name", sa.String(255)))
    op.add_column("aggregates", sa.Column("metadata", sa.Text, nullable=False, server_default="{}"))
    op.create_index("ix_aggregates_name", "aggregates", ["name"], unique=True)
    op.add_column("change_log", sa.Column("aggregates", sa.Text))


def downgrade() -> None:
    op.drop_column("change_log", "aggregates")
    op.drop_index("ix_aggregates_name", "aggregates")
    op.drop_column("aggregates", "metadata")
    op.drop_column("aggregates", "name")

"""Aggregates have a name and metadata, and the log of changes tells of them.

Processes from before this migration go on working beside it: they name aggregates by their ids, and read and
tell the log without what is said of aggregates. Who hears a change that names nothing looks in the log.
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

"""Cells are registered, the log of changes tells of them, and a tombstone says which cell put it there.

Processes from before this migration go on working beside it: they tell the log without what is said of cells,
and who hears a change that names nothing looks in the log.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008_cells"
down_revision = "0007_aggregates"


def upgrade() -> None:
    op.add_column("retired_consumers", sa.Column("cell", sa.String(64), nullable=False, server_default=""))
    op.add_column("change_log", sa.Column("cells", sa.Text))
    op.create_table(
        "cells",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("enabled", sa.Boolean, nullable=False, server_default=sa.true()),
        sa.Column("note", sa.Text, nullable=False, server_default=""),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_cells"),
    )


def downgrade() -> None:
    op.drop_table("cells")
    op.drop_column("change_log", "cells")
    op.drop_column("retired_consumers", "cell")

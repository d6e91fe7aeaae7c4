"""Register cells, log their changes, and record the cell in tombstones."""

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

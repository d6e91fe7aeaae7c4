"""Builds whose hosts were reshaped are kept until their conductors have been told.

Processes from before this migration go on working beside it: they take reports in as if nothing moved by
them, and tell nobody of those that others moved.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009_reshaped_builds"
down_revision = "0008_cells"


def upgrade() -> None:
    op.create_table(
        "reshaped_builds",
        sa.Column("number", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("builds", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_reshaped_builds"),
    )


def downgrade() -> None:
    op.drop_table("reshaped_builds")

"""Store builds on reshaped hosts until their conductors have been informed."""

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

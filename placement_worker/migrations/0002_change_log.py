"""Keep the last changes, so that readers that missed some do not read everything again."""

import sqlalchemy as sa
from alembic import op

revision = "0002_change_log"
down_revision = "0001_first"


def upgrade() -> None:
    op.create_table(
        "change_log",
        sa.Column("number", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("changes", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_change_log"),
    )


def downgrade() -> None:
    op.drop_table("change_log")

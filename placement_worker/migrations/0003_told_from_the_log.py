"""Publish changes from the log: a number stores the position, in place of an outbox with a copy of every
message.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003_told_from_the_log"
down_revision = "0002_change_log"
oldest = "0003_told_from_the_log"  # the outbox is deleted

LAST_CHANGE, LAST_TOLD = 1, 5


def upgrade() -> None:
    # What still waited in the outbox are the last of the changes.
    op.execute(
        f"INSERT INTO changes (id, number) SELECT {LAST_TOLD}, number - (SELECT count(*) FROM outbox)"
        f" FROM changes WHERE id = {LAST_CHANGE}"
    )
    op.drop_table("outbox")


def downgrade() -> None:
    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("envelope", sa.Text, nullable=False),
        sa.Column("created", sa.Float(53), nullable=False),
        sqlite_autoincrement=True,
    )
    op.execute(f"DELETE FROM changes WHERE id = {LAST_TOLD}")

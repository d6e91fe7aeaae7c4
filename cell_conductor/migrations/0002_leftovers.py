"""Guests that a build may have left on former hosts, and when to check them again.

Only added to: a conductor that knows nothing of it leaves the column as it is.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002_leftovers"
down_revision = "0001_first"


def upgrade() -> None:
    op.add_column("builds", sa.Column("leftovers", sa.Text, nullable=False, server_default=""))
    leftover = sa.text("status IN ('active', 'error', 'deleted') AND deadline > 0")
    op.create_index(
        "builds_leftover", "builds", ["deadline"], postgresql_where=leftover, sqlite_where=leftover
    )

"""Builds that have moved to another cell: reminded of until that is over, and then forgotten in time."""

import sqlalchemy as sa
from alembic import op

revision = "0006_moved"
down_revision = "0005_moves"

MOVING = "status IN ('moving', 'verifying', 'shelved')"
OVER = "status IN ('error', 'deleted')"
WITH_MOVED = ", 'moved')"


def upgrade() -> None:
    for name, column, before in (("builds_moving", "deadline", MOVING), ("builds_over", "said", OVER)):
        op.drop_index(name, table_name="builds")
        where = sa.text(before.replace(")", WITH_MOVED))
        op.create_index(name, "builds", [column], postgresql_where=where, sqlite_where=where)

"""The first migration of planning: switches of operators."""

import sqlalchemy as sa

from bus.sql.schema import columns, table

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    table("stopped", columns(sa.Text, "switch"), columns(sa.Double, "since"))  # set by operators

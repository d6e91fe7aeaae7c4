"""The first migration of planning: hosts closed for plans, and switches of operators."""

import sqlalchemy as sa

from bus.sql.schema import columns, table

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    text = sa.Text
    table(
        "held_hosts",  # hosts closed for a plan of moves; with an empty plan, the host is being opened
        columns(text, "root", "plan"),
        columns(sa.Double, "until"),
    )
    table("stopped", columns(text, "switch"), columns(sa.Double, "since"))  # set by operators

"""The first schema of moves in the database of a conductor."""

import sqlalchemy as sa

from bus.sql.schema import columns, index, table

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    table(
        "moves",
        # `source` and `host`: names of hosts
        columns(sa.Text, "id", "build", "kind", "status", "phase", "source", "host"),
        columns(sa.Double, "since", "ended"),
        columns(sa.Text, "placed", "story"),  # placed: the MovePlaced as received; story: the BuildMove
    )
    index("moves", "moves_build", "build")
    index("moves", "moves_since", "since", "id")
    index("moves", "moves_open", "since", "id", where="status = 'open'")
    index("moves", "moves_ended", "ended", where="status = 'ended'")

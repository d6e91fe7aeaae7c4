"""The first migration: archived snapshots and changes."""

import sqlalchemy as sa

from bus.sql.schema import columns, table

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    table(
        "archived_snapshots",
        # number of the last change in the snapshot
        columns(sa.BigInteger, "number", autoincrement=False),
        columns(sa.Integer, "part", autoincrement=False),
        columns(sa.Double, "at"),
        columns(sa.LargeBinary, "body"),
        keys=2,
    )
    table(
        "archived_changes",
        columns(sa.BigInteger, "first", autoincrement=False),
        columns(sa.BigInteger, "last"),
        columns(sa.Double, "began", "ended"),  # the times of the first and the last change
        columns(sa.LargeBinary, "body"),
    )

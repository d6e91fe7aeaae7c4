"""Create the table of capacity samples."""

import sqlalchemy as sa

from bus.sql.schema import columns, table

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    table(
        "capacity_samples",
        columns(sa.Integer, "span"),  # seconds between samples, or of a mean
        columns(sa.BigInteger, "at"),
        columns(sa.Text, "kind", "name", "zone"),
        columns(sa.Double, "capacity", "used", "free", "stranded", "waiting"),
        keys=5,
    )

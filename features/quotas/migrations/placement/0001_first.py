"""The first migration: the limits of projects."""

import sqlalchemy as sa

from bus.sql.schema import columns, table

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    table(
        "quotas",  # the project "" has the default limits
        columns(sa.String(255), "project", "resource"),
        columns(sa.BigInteger, "most"),  # the limit; -1: unlimited
        keys=2,
    )

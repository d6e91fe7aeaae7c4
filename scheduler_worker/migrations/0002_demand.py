"""Adds the usual shapes of requests."""

import sqlalchemy as sa

from bus.sql.schema import columns, table

revision = "0002_demand"
down_revision = "0001_first"


def upgrade() -> None:
    # weight: of the requests with this shape; later requests weigh more (core/demand.py)
    table("demand", columns(sa.Text, "shape"), columns(sa.Double, "weight"))

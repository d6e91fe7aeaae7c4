"""Create the tables of the registered clients."""

import sqlalchemy as sa

from bus.sql.schema import columns, table

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    table("client_projects", columns(sa.Text, "client", "project"), keys=2)
    table(
        "client_roles",
        columns(sa.Text, "client", "role"),
        columns(sa.Text, "cells"),  # a JSON list; empty: all cells
    )

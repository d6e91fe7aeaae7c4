"""The first migration of maintenance: windows, evacuations, and their events."""

import sqlalchemy as sa

from bus.sql.schema import columns, index, table

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    text = sa.Text
    table(
        "host_evacuations",
        columns(text, "id", "root"),
        columns(sa.Boolean, "open", "released"),
        columns(text, "record"),  # the HostEvacuation
    )
    index("host_evacuations", "host_evacuations_open", "root", where="open", unique=True)
    table(
        "maintenance_events",
        columns(text, "subject"),  # id of a maintenance window or of a host's evacuation
        columns(sa.Double, "at"),
        columns(text, "event", "detail"),
        keys=3,
    )
    table(
        "maintenance_hosts",
        columns(text, "id", "root"),
        columns(sa.Boolean, "finished"),  # true if an operator has ended the maintenance of this host
        columns(text, "record"),  # the WindowHost
        keys=2,
    )
    table(
        "maintenance_windows",
        columns(text, "id"),
        columns(sa.Boolean, "cancelled"),
        columns(sa.Double, "drain_begins", "empty_at", "ended"),
        columns(sa.Integer, "measured"),
        columns(text, "record"),  # the MaintenanceWindow
    )

"""The first migration: reservations, their slots, and the slots from which consumers drew."""

import sqlalchemy as sa
from alembic import op

from bus.sql.schema import columns, index, table

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    table(
        "reservations",
        columns(sa.String(36), "uuid"),
        columns(sa.String(200), "name"),
        columns(sa.String(255), "project"),
        columns(sa.Text, "spec"),  # JSON
        columns(sa.Double, "ends"),  # seconds since 1970; 0: no end
        columns(sa.Boolean, "ended"),
        columns(sa.Double, "created_at", "updated_at"),
        [sa.UniqueConstraint("project", "name")],
    )
    # The first allocations of each slot; the consumer with the slot's uuid has the undrawn ones.
    table(
        "reservation_slots",
        columns(sa.String(36), "uuid", "reservation"),
        columns(sa.String(255), "project"),
        columns(sa.Text, "allocations"),  # JSON
    )
    index("reservation_slots", "ix_reservation_slots_reservation", "reservation")
    op.add_column("consumers", sa.Column("draws_on", sa.String(36)))  # the slot from which it drew
    index("consumers", "ix_consumers_draws_on", "draws_on", where="draws_on IS NOT NULL")

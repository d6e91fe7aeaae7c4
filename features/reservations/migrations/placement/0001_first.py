"""The first migration: reservations, their slots, and the slots from which consumers drew."""

import sqlalchemy as sa
from alembic import op

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "reservations",
        sa.Column("uuid", sa.String(36), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("project", sa.String(255), nullable=False),
        sa.Column("spec", sa.Text, nullable=False),  # JSON
        sa.Column("ends", sa.Double, nullable=False),  # seconds since 1970; 0: no end
        sa.Column("ended", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.UniqueConstraint("project", "name"),
    )
    # The first allocations of each slot; the consumer with the slot's uuid has the undrawn ones.
    op.create_table(
        "reservation_slots",
        sa.Column("uuid", sa.String(36), primary_key=True),
        sa.Column("reservation", sa.String(36), nullable=False),
        sa.Column("project", sa.String(255), nullable=False),
        sa.Column("allocations", sa.Text, nullable=False),  # JSON
    )
    op.create_index("ix_reservation_slots_reservation", "reservation_slots", ["reservation"])
    op.add_column("consumers", sa.Column("draws_on", sa.String(36)))  # the slot from which it drew
    drew = sa.text("draws_on IS NOT NULL")
    op.create_index(
        "ix_consumers_draws_on", "consumers", ["draws_on"], postgresql_where=drew, sqlite_where=drew
    )

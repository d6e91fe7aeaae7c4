"""Samples of the capacity over time."""

import sqlalchemy as sa
from alembic import op

revision = "0003_capacity"
down_revision = "0002_strikes"


def upgrade() -> None:
    numbers = ("capacity", "used", "free", "stranded", "waiting")
    op.create_table(
        "capacity_samples",
        sa.Column("span", sa.Integer, nullable=False),  # seconds between samples, or of a mean
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("zone", sa.Text, nullable=False),
        *(sa.Column(name, sa.Double, nullable=False) for name in numbers),
        sa.PrimaryKeyConstraint("span", "at", "kind", "name", "zone", name="pk_capacity_samples"),
    )

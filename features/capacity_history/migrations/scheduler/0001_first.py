"""Create the table of capacity samples."""

import sqlalchemy as sa
from alembic import op

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "capacity_samples",
        sa.Column("span", sa.Integer, nullable=False),  # seconds between samples, or of a mean
        sa.Column("at", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("kind", "name", "zone")),
        *(
            sa.Column(name, sa.Double, nullable=False)
            for name in ("capacity", "used", "free", "stranded", "waiting")
        ),
        sa.PrimaryKeyConstraint("span", "at", "kind", "name", "zone"),
    )

"""The tables of archived snapshots and changes, and the columns of the change log that the archive needs."""

import sqlalchemy as sa
from alembic import op

revision = "0002_history"
down_revision = "0001_first"


def upgrade() -> None:
    op.add_column("change_log", sa.Column("at", sa.Double))  # time of the commit
    op.add_column("change_log", sa.Column("trees", sa.Text))  # JSON of KnownTrees: the reshaped trees
    op.add_column("change_log", sa.Column("consumers", sa.Text))  # JSON of ConsumerChanges
    op.add_column("change_log", sa.Column("renamed", sa.Text))  # JSON: both names of a resource class
    op.create_table(
        "archived_snapshots",
        sa.Column("number", sa.BigInteger, nullable=False),  # number of the last change in the snapshot
        sa.Column("part", sa.Integer, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("number", "part", name="pk_archived_snapshots"),
    )
    op.create_table(
        "archived_changes",
        sa.Column("first", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("last", sa.BigInteger, nullable=False),
        sa.Column("began", sa.Double, nullable=False),  # the times of the first and the last change
        sa.Column("ended", sa.Double, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("first", name="pk_archived_changes"),
    )

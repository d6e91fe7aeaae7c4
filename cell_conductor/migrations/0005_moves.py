"""Moves: what builds have become by them, and each of them as it goes, or went.

Only added to. A conductor of before leaves the column as it is, but does not know the hosts that moves bring:
all of a cell are of this version before the first move is asked for.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005_moves"
down_revision = "0004_ring"


def upgrade() -> None:
    op.add_column("builds", sa.Column("moved", sa.Text, nullable=False, server_default=""))
    moving = sa.text("status IN ('moving', 'verifying', 'shelved')")
    op.create_index("builds_moving", "builds", ["deadline"], postgresql_where=moving, sqlite_where=moving)
    op.create_table(
        "moves",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("build", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("since", sa.Double, nullable=False),
        sa.Column("ended", sa.Double, nullable=False),
        sa.Column("placed", sa.Text, nullable=False),
        sa.Column("story", sa.Text, nullable=False),
    )
    op.create_index("moves_build", "moves", ["build"])
    op.create_index("moves_since", "moves", ["since", "id"])
    under_way, over = sa.text("status = 'open'"), sa.text("status = 'ended'")
    op.create_index(
        "moves_open", "moves", ["since", "id"], postgresql_where=under_way, sqlite_where=under_way
    )
    op.create_index("moves_ended", "moves", ["ended"], postgresql_where=over, sqlite_where=over)

"""Bare metal that several agents share: pools of nodes, the agents of each, and who owns which node."""

import sqlalchemy as sa
from alembic import op

revision = "0004_ring"
down_revision = "0003_listed"


def upgrade() -> None:
    op.create_table(
        "ring_pools",
        sa.Column("pool", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "ring_members",
        sa.Column("agent", sa.Text, primary_key=True),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("run", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("beat", sa.BigInteger, nullable=False),
        sa.Column("alive", sa.Boolean, nullable=False),
        sa.Column("disabled", sa.Boolean, nullable=False),
        sa.Column("lease", sa.Double, nullable=False),
        sa.Column("seen", sa.BigInteger, nullable=False),
        sa.Column("heard", sa.Double, nullable=False),
    )
    op.create_table(
        "ring_nodes",
        sa.Column("root", sa.Text, primary_key=True),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("leaving", sa.Text, nullable=False),
        sa.Column("moves_to", sa.Text, nullable=False),
    )
    op.create_index("ring_nodes_changed", "ring_nodes", ["pool", "version"])
    op.create_index("ring_nodes_owner", "ring_nodes", ["owner"])
    left = sa.text("leftovers <> ''")
    op.create_index("builds_left_behind", "builds", ["id"], postgresql_where=left, sqlite_where=left)

"""The first schema of shared nodes in the database of a conductor."""

import sqlalchemy as sa

from bus.sql.schema import columns, index, table

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    text, number = sa.Text, sa.BigInteger
    table(
        "ring_members",
        columns(text, "agent", "pool", "run"),
        columns(number, "epoch", "beat"),
        columns(sa.Boolean, "alive", "disabled"),
        columns(sa.Double, "lease"),
        columns(number, "seen"),
        columns(sa.Double, "asked_at"),
    )
    table(
        "ring_nodes",
        columns(text, "root", "pool", "owner"),  # owner: the agent that may act on the node; empty: none
        columns(number, "epoch", "version"),
        columns(text, "leaving", "moves_to"),
    )
    index("ring_nodes", "ring_nodes_changed", "pool", "version")
    index("ring_nodes", "ring_nodes_owner", "owner")
    # version: counter of changes of the pool's nodes
    table("ring_pools", columns(text, "pool"), columns(number, "version"))

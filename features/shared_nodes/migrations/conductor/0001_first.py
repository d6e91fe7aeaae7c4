"""The first schema of shared nodes in the database of a conductor."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001_first"
down_revision = None


def _columns(type_: Any, *names: str, **options: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, type_, nullable=False, **options) for name in names]


def upgrade() -> None:
    op.create_table(
        "ring_members",
        *_columns(sa.Text, "agent", primary_key=True),
        *_columns(sa.Text, "pool", "run"),
        *_columns(sa.BigInteger, "epoch", "beat"),
        *_columns(sa.Boolean, "alive", "disabled"),
        *_columns(sa.Double, "lease"),
        *_columns(sa.BigInteger, "seen"),
        *_columns(sa.Double, "asked_at"),
    )
    op.create_table(
        "ring_nodes",
        *_columns(sa.Text, "root", primary_key=True),
        *_columns(sa.Text, "pool", "owner"),  # `owner`: the agent that may act on the node; empty: none
        *_columns(sa.BigInteger, "epoch", "version"),
        *_columns(sa.Text, "leaving", "moves_to"),
    )
    op.create_index("ring_nodes_changed", "ring_nodes", ["pool", "version"])
    op.create_index("ring_nodes_owner", "ring_nodes", ["owner"])
    op.create_table(
        "ring_pools",
        *_columns(sa.Text, "pool", primary_key=True),
        *_columns(sa.BigInteger, "version"),  # counter of changes of the pool's nodes
    )

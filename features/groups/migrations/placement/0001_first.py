"""The first migration: server groups and their members."""

import sqlalchemy as sa
from alembic import op

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    op.create_table(  # claims lock the row of a server group, so claims of one group wait for each other
        "server_groups",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("uuid", sa.String(36), nullable=False, unique=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("project", sa.String(255), nullable=False),
        sa.Column("policy", sa.String(32), nullable=False),
        sa.Column("max_per_host", sa.Integer, nullable=False),
        sa.Column("topology", sa.Text, nullable=False),  # JSON of DomainConstraints, or empty
        sa.Column("topology_required", sa.Boolean, nullable=False),  # true: claims check the topology
        # true: made for one request, and deleted when without members
        sa.Column("of_request", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.UniqueConstraint("project", "name"),
        sqlite_autoincrement=True,
    )
    op.add_column("consumers", sa.Column("group_id", sa.Integer))  # ids of deleted groups are never reused
    joined = sa.text("group_id IS NOT NULL")
    op.create_index(
        "ix_consumers_group_id", "consumers", ["group_id"], postgresql_where=joined, sqlite_where=joined
    )

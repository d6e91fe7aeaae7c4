"""The first migration: server groups and their members."""

import sqlalchemy as sa
from alembic import op

from bus.sql.schema import columns, index, table

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    table(  # claims lock the row of a server group, so claims of one group wait for each other
        "server_groups",
        columns(sa.Integer, "id"),
        columns(sa.String(36), "uuid", unique=True),
        columns(sa.String(200), "name"),
        columns(sa.String(255), "project"),
        columns(sa.String(32), "policy"),
        columns(sa.Integer, "max_per_host"),
        columns(sa.Text, "topology"),  # JSON of DomainConstraints, or empty
        columns(sa.Boolean, "topology_required"),  # true: claims check the topology
        columns(sa.Boolean, "of_request"),  # true: made for one request, and deleted when without members
        columns(sa.Double, "created_at", "updated_at"),
        [sa.UniqueConstraint("project", "name")],
        sqlite_autoincrement=True,
    )
    op.add_column("consumers", sa.Column("group_id", sa.Integer))  # ids of deleted groups are never reused
    index("consumers", "ix_consumers_group_id", "group_id", where="group_id IS NOT NULL")

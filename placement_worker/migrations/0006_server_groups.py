"""Add server groups, and the group of each consumer."""

import sqlalchemy as sa
from alembic import op

revision = "0006_server_groups"
down_revision = "0005_unplaceable"

IN_A_GROUP = sa.text("group_id IS NOT NULL")


def upgrade() -> None:
    op.create_table(
        "server_groups",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("project", sa.String(255), nullable=False),
        sa.Column("policy", sa.String(32), nullable=False),
        sa.Column("max_per_host", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_server_groups"),
        sa.UniqueConstraint("uuid", name="uq_server_groups_uuid"),
        sa.UniqueConstraint("project", "name", name="uq_server_groups_project_name"),
        sqlite_autoincrement=True,
    )
    op.add_column("consumers", sa.Column("group_id", sa.Integer))
    op.create_index(
        "ix_consumers_group_id",
        "consumers",
        ["group_id"],
        postgresql_where=IN_A_GROUP,
        sqlite_where=IN_A_GROUP,
    )


def downgrade() -> None:
    op.drop_index("ix_consumers_group_id", "consumers")
    op.drop_column("consumers", "group_id")
    op.drop_table("server_groups")

"""Clients: the projects that each registered client acts for."""

import sqlalchemy as sa
from alembic import op

revision = "0006_clients"
down_revision = "0005_host_health"


def upgrade() -> None:
    op.create_table(
        "client_projects",
        sa.Column("client", sa.Text, primary_key=True),
        sa.Column("project", sa.Text, primary_key=True),
    )


def downgrade() -> None:
    op.drop_table("client_projects")

"""The first migration: the records of preemptions."""

import sqlalchemy as sa
from alembic import op

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    op.create_table(  # instances that were replaced by builds of higher priority
        "preemptions",
        sa.Column("victim", sa.String(36), primary_key=True),
        sa.Column("preemptor", sa.String(36), primary_key=True),
        # project of the preempting build, whose budget is charged
        sa.Column("project", sa.String(255), nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("record", sa.Text, nullable=False),  # JSON
    )
    op.create_index("ix_preemptions_preemptor", "preemptions", ["preemptor"])
    op.create_index("ix_preemptions_project_at", "preemptions", ["project", "at"])
    op.create_index("ix_preemptions_at", "preemptions", ["at"])

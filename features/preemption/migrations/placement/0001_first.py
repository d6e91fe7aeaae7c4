"""The first migration: the records of preemptions."""

import sqlalchemy as sa

from bus.sql.schema import columns, index, table

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    table(  # instances that were replaced by builds of higher priority
        "preemptions",
        columns(sa.String(36), "victim", "preemptor"),
        columns(sa.String(255), "project"),  # of the preempting build, whose budget is charged
        columns(sa.Double, "at"),
        columns(sa.Text, "record"),  # JSON
        keys=2,
    )
    index("preemptions", "ix_preemptions_preemptor", "preemptor")
    index("preemptions", "ix_preemptions_project_at", "project", "at")
    index("preemptions", "ix_preemptions_at", "at")

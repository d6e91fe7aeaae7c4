"""The first migration of preemption in the database of schedulers: priority classes."""

import sqlalchemy as sa

from bus.sql.schema import columns, index, table

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    text = sa.Text
    table("priority_classes", columns(text, "name"), columns(sa.Integer, "priority"), columns(text, "spec"))
    index("priority_classes", "priority_classes_priority", "priority", unique=True)

"""The first schema of the REST API: accepted requests with their builds, and the numbered log of ends."""

import sqlalchemy as sa
from alembic import op

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    text = sa.Text
    op.create_table(
        "rest_requests",  # build requests and moves
        sa.Column("id", text, primary_key=True),
        sa.Column("project", text, nullable=False),
        sa.Column("digest", text, nullable=False),  # equal for a repeated request
        sa.Column("at", sa.Double, nullable=False),
    )
    op.create_index("rest_requests_at", "rest_requests", ["at"])
    op.create_table(
        "rest_builds",
        sa.Column("build", text, primary_key=True),
        sa.Column("request", text, nullable=False),  # empty: requested without the REST API
        sa.Column("project", text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )
    op.create_index("rest_builds_request", "rest_builds", ["request"])
    op.create_index("rest_builds_at", "rest_builds", ["at"])
    op.create_table(
        "rest_ends",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("event", text, nullable=False),  # name of the topic
        sa.Column("subject", text, nullable=False),  # messages of equal subject are stored once
        sa.Column("project", text, nullable=False),
        sa.Column("request", text, nullable=False),
        sa.Column("body", text, nullable=False),  # JSON
        sa.Column("at", sa.Double, nullable=False),
    )
    op.create_index("rest_ends_subject", "rest_ends", ["event", "subject"], unique=True)
    op.create_index("rest_ends_project", "rest_ends", ["project", "number"])
    op.create_index("rest_ends_request", "rest_ends", ["request"])
    op.create_index("rest_ends_at", "rest_ends", ["at"])
    counter = op.create_table(
        "rest_counter",
        sa.Column("last", sa.BigInteger, nullable=False),  # highest number of an end
        sa.Column("pruned", sa.BigInteger, nullable=False),  # highest number of a deleted end
    )
    op.bulk_insert(counter, [{"last": 0, "pruned": 0}])

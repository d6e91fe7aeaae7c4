"""The first schema of the REST API: accepted requests with their builds, and the numbered log of ends."""

import sqlalchemy as sa
from alembic import op

from bus.sql.schema import columns, index, table

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    text, time, number = sa.Text, sa.Double, sa.BigInteger
    table(
        "rest_requests",  # build requests and moves
        columns(text, "id", "project", "digest"),  # digest: equal for a repeated request
        columns(time, "at"),
    )
    index("rest_requests", "rest_requests_at", "at")
    table(
        "rest_builds",
        columns(text, "build", "request", "project"),  # request: empty if requested without the REST API
        columns(time, "at"),
    )
    index("rest_builds", "rest_builds_request", "request")
    index("rest_builds", "rest_builds_at", "at")
    table(
        "rest_ends",
        columns(number, "number", autoincrement=False),
        columns(text, "event"),  # name of the topic
        columns(text, "subject"),  # messages of equal subject are stored once
        columns(text, "project", "request", "body"),  # body: JSON
        columns(time, "at"),
    )
    index("rest_ends", "rest_ends_subject", "event", "subject", unique=True)
    index("rest_ends", "rest_ends_project", "project", "number")
    index("rest_ends", "rest_ends_request", "request")
    index("rest_ends", "rest_ends_at", "at")
    # The highest number of an end, and the highest number of a deleted end.
    counter = op.create_table("rest_counter", *columns(number, "last", "pruned"))
    op.bulk_insert(counter, [{"last": 0, "pruned": 0}])

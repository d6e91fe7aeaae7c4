"""The first schema: builds and removed agents."""

import sqlalchemy as sa

from bus.sql.schema import columns, index, table

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    text, time, number = sa.Text, sa.Double, sa.BigInteger
    # The state of builds, which each step writes. PostgreSQL logs the new version of a row only from the
    # first to the last changed column, if it fits into the old page. So the long `story` is last.
    table(
        "builds",
        columns(text, "id"),
        columns(number, "version"),
        columns(time, "deadline", "updated_at"),  # updated_at: last change or repetition of messages
        columns(number, "generation", nullable=True),  # consumer generation in placement
        columns(sa.Integer, "attempt"),
        columns(text, "status"),
        columns(text, "leftovers", "parts", server_default=""),
        columns(text, "story"),  # fields that no query filters by, as JSON
        postgresql_with={"fillfactor": 70},
    )
    # Partial indexes without settled builds, because most builds are settled.
    statuses = "'building', 'swapping', 'active', 'held', 'error', 'deleting', 'deleted'"
    over = "status IN ('active', 'error', 'deleted') AND deadline > 0"
    index("builds", "builds_unsettled", "deadline", where="status IN ('building', 'swapping', 'deleting')")
    index("builds", "builds_over", "updated_at", where="status IN ('error', 'deleted')")
    index("builds", "builds_leftover", "deadline", where=over)
    index("builds", "builds_left_behind", "id", where="leftovers <> ''")
    index("builds", "builds_held", "deadline", where=f"status NOT IN ({statuses})")  # a course has these
    # Large and indexed data of builds, written once, and again if the host changes.
    table(
        "placed_builds",
        columns(text, "build", "root", "host", "project", "name"),  # root, host: the current or last host
        columns(text, "placed"),  # the BuildPlaced as received
    )
    index("placed_builds", "placed_builds_project", "project", "build")
    index("placed_builds", "placed_builds_host", "host")
    index("placed_builds", "placed_builds_root", "root")
    index("placed_builds", "placed_builds_name", "name", "build", where="name <> ''")
    table(  # agents that operators removed from the cell
        "removed_agents", columns(text, "agent"), columns(time, "since")
    )
    table(
        "assumed_guests",  # guests of removed agents that count as destroyed without a report
        columns(text, "build"),
        columns(number, "attempt"),
        columns(text, "root", "host", "agent"),
        columns(time, "since"),
        keys=3,
    )

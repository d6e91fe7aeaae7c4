"""The first migration of waiting: waiting requests, the backlog, and the schedulers that own them."""

import sqlalchemy as sa
from alembic import op

from bus.sql.schema import columns, table

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    text, priority, cancelled = sa.Text, sa.text("priority DESC"), sa.text("cancelled <> ''")
    table(
        "backlog",  # each row is a bundle: requests of one project and priority that were not evaluated
        columns(text, "id"),
        columns(text, "owner", "project"),  # the scheduler that serves the bundle (or empty), the project
        columns(sa.Integer, "priority"),
        columns(sa.Double, "since"),  # when the first request of the bundle was sent
        columns(sa.Integer, "requests"),  # number of requests in the bundle
        columns(text, "envelopes"),  # the request messages as received
        # number of schedulers that ended while they evaluated the bundle
        columns(sa.Integer, "strikes", server_default="0"),
    )
    op.create_index("backlog_order", "backlog", ["owner", "project", priority, "since", "id"])
    table(
        "parked",
        columns(text, "request"),
        columns(text, "owner"),  # the owning scheduler; empty: none
        columns(text, "kind"),  # the equivalence class
        columns(sa.Integer, "priority"),
        columns(sa.Double, "since", "until"),
        columns(text, "project", "flavor"),
        columns(sa.Integer, "instances"),
        columns(sa.BigInteger, "seen"),  # placement's last change number at the evaluation
        columns(text, "message"),  # the BuildRequested as received, or the MoveStart of a move
        columns(text, "lacks", "wakes", "decision"),
        columns(text, "wakes_on", server_default=""),  # key of commits that may help a refused claim
        columns(text, "cancelled", server_default=""),  # reason for a cancellation, until the owner reads it
        columns(text, "story", server_default=""),  # tracing context of the request's message
        columns(text, "move", server_default=""),  # type of a move; empty: a build
        # number of schedulers that ended while they evaluated the request
        columns(sa.Integer, "strikes", server_default="0"),
    )
    op.create_index(
        "parked_cancelled", "parked", ["owner"], postgresql_where=cancelled, sqlite_where=cancelled
    )
    op.create_index("parked_owner", "parked", ["owner"])
    op.create_index("parked_line", "parked", ["kind", priority, "since"])
    table("parked_builds", columns(text, "build", "request"))
    op.create_index("parked_builds_request", "parked_builds", ["request"])
    table("moving_builds", columns(text, "build", "move"))  # at most one move of an instance waits
    op.create_index("moving_builds_move", "moving_builds", ["move"])
    table(
        "schedulers",
        columns(text, "owner"),
        columns(sa.BigInteger, "beat"),  # grows with every heartbeat
        columns(text, "reserved"),  # hosts that the scheduler reserves for its first waiting requests
        columns(sa.BigInteger, "rescued"),
        columns(text, "starts", server_default=""),  # how fast the scheduler's queues advance
        columns(text, "served", server_default=""),  # size of the recently served requests by project
        # the pace at which the scheduler serves the backlog of each project
        columns(text, "paces", server_default=""),
        # for which project, and since when, the scheduler reserves hosts for waiting requests
        columns(text, "holds", server_default=""),
    )

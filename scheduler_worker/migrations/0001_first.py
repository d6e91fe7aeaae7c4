"""The first migration: waiting requests, decisions, schedulers, hosts and clients."""

import sqlalchemy as sa
from alembic import op

from bus.sql.schema import columns, table

revision = "0001_first"
down_revision = None


def _acts() -> None:
    """Create the table of the audit trail."""
    table(
        "acts",
        columns(sa.Text, "id"),
        columns(sa.Double, "at"),
        columns(sa.Boolean, "program"),  # true if a client or service requested the act
        columns(sa.Integer, "finality"),  # never replaced by a lower value
        columns(sa.Text, "operator", "role", "operator_project", "door", "act", "target", "target_name"),
        columns(sa.Text, "project", "request", "outcome"),
        columns(sa.Text, "record"),  # the ActRecord
    )
    op.create_index("acts_at", "acts", ["at", "id"])
    op.create_index("acts_program", "acts", ["program", "at"])
    op.create_index("acts_operator", "acts", ["operator", "at"])
    op.create_index("acts_target", "acts", ["target", "at"])


def upgrade() -> None:
    text = sa.Text
    _acts()
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
    priority = sa.text("priority DESC")
    op.create_index("backlog_order", "backlog", ["owner", "project", priority, "since", "id"])
    table("client_projects", columns(text, "client", "project"), keys=2)
    table(
        "client_roles",
        columns(text, "client", "role"),
        columns(text, "cells"),  # a JSON list; empty: all cells
    )
    table("decided_builds", columns(text, "build", "decision"))
    op.create_index("decided_builds_decision", "decided_builds", ["decision"])
    table(
        "decisions",
        columns(text, "id"),  # id of the first build that ended with this decision
        columns(text, "request", "project", "reason", "decision"),
        columns(text, "message"),  # the BuildRequested; for a move, the request for a destination or empty
        columns(sa.Double, "at"),
        columns(text, "move", server_default=""),  # the MoveRequested, for a refused move
        columns(text, "placed", server_default=""),  # the BuildPlaced, if another system builds the instance
        columns(sa.Boolean, "external", server_default=sa.false()),  # true: another system builds it
    )
    op.create_index("decisions_at", "decisions", ["at"])
    op.create_index("decisions_request", "decisions", ["request"])
    table(
        "held_hosts",  # hosts closed for a plan of moves; with an empty plan, the host is being opened
        columns(text, "root", "plan"),
        columns(sa.Double, "until"),
    )
    # Hosts that are down or closed by their agents; a host that is up has no row.
    table("host_health", columns(text, "cell", "root", "health"), keys=2)
    table("leaders", columns(text, "work", "scheduler"), columns(sa.Double, "until"))
    table("moving_builds", columns(text, "build", "move"))  # at most one move of an instance waits
    op.create_index("moving_builds_move", "moving_builds", ["move"])
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
    cancelled = sa.text("cancelled <> ''")
    op.create_index(
        "parked_cancelled", "parked", ["owner"], postgresql_where=cancelled, sqlite_where=cancelled
    )
    op.create_index("parked_owner", "parked", ["owner"])
    op.create_index("parked_line", "parked", ["kind", sa.text("priority DESC"), "since"])
    table(
        "open_exchanges",
        columns(text, "id"),
        columns(sa.Double, "at"),
        columns(sa.Double, "due"),  # a scheduler checks it after this time
        columns(sa.Boolean, "half_done"),  # the first instance is to be moved back
        columns(text, "record"),  # the GuardExchange
    )
    table("parked_builds", columns(text, "build", "request"))
    op.create_index("parked_builds_request", "parked_builds", ["request"])
    table("priority_classes", columns(text, "name"), columns(sa.Integer, "priority"), columns(text, "spec"))
    op.create_index("priority_classes_priority", "priority_classes", ["priority"], unique=True)
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
    table("stopped", columns(text, "switch"), columns(sa.Double, "since"))  # set by operators

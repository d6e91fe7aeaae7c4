"""The first migration: waiting requests, decisions, schedulers, hosts and clients."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001_first"
down_revision = None


def _columns(type_: Any, *names: str, **options: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, type_, nullable=False, **options) for name in names]


def _table(name: str, *columns: list[sa.Column[Any]], keys: int = 1) -> None:
    """Create a table. The first `keys` columns are its primary key."""
    listed = [column for some in columns for column in some]
    key = sa.PrimaryKeyConstraint(*(column.name for column in listed[:keys]))
    op.create_table(name, *listed, key)


def _acts() -> None:
    """Create the table of the audit trail."""
    _table(
        "acts",
        _columns(sa.Text, "id"),
        _columns(sa.Double, "at"),
        _columns(sa.Boolean, "program"),  # true if a client or service requested the act
        _columns(sa.Integer, "finality"),  # never replaced by a lower value
        _columns(sa.Text, "operator", "role", "operator_project", "door", "act", "target", "target_name"),
        _columns(sa.Text, "project", "request", "outcome"),
        _columns(sa.Text, "record"),  # the ActRecord
    )
    op.create_index("acts_at", "acts", ["at", "id"])
    op.create_index("acts_program", "acts", ["program", "at"])
    op.create_index("acts_operator", "acts", ["operator", "at"])
    op.create_index("acts_target", "acts", ["target", "at"])


def upgrade() -> None:
    text = sa.Text
    _acts()
    _table(
        "backlog",  # each row is a bundle: requests of one project and priority that were not evaluated
        _columns(text, "id"),
        _columns(text, "owner", "project"),  # the scheduler that serves the bundle (or empty), the project
        _columns(sa.Integer, "priority"),
        _columns(sa.Double, "since"),  # when the first request of the bundle was sent
        _columns(sa.Integer, "requests"),  # number of requests in the bundle
        _columns(text, "envelopes"),  # the request messages as received
        # number of schedulers that ended while they evaluated the bundle
        _columns(sa.Integer, "strikes", server_default="0"),
    )
    priority = sa.text("priority DESC")
    op.create_index("backlog_order", "backlog", ["owner", "project", priority, "since", "id"])
    _table("client_projects", _columns(text, "client", "project"), keys=2)
    _table(
        "client_roles",
        _columns(text, "client", "role"),
        _columns(text, "cells"),  # a JSON list; empty: all cells
    )
    _table("decided_builds", _columns(text, "build", "decision"))
    op.create_index("decided_builds_decision", "decided_builds", ["decision"])
    _table(
        "decisions",
        _columns(text, "id"),  # id of the first build that ended with this decision
        _columns(text, "request", "project", "reason", "decision"),
        _columns(text, "message"),  # the BuildRequested; for a move, the request for a destination or empty
        _columns(sa.Double, "at"),
        _columns(text, "move", server_default=""),  # the MoveRequested, for a refused move
        _columns(text, "placed", server_default=""),  # the BuildPlaced, if another system builds the instance
        _columns(sa.Boolean, "external", server_default=sa.false()),  # true: another system builds it
    )
    op.create_index("decisions_at", "decisions", ["at"])
    op.create_index("decisions_request", "decisions", ["request"])
    _table(
        "held_hosts",  # hosts closed for a plan of moves; with an empty plan, the host is being opened
        _columns(text, "root", "plan"),
        _columns(sa.Double, "until"),
    )
    # Hosts that are down or closed by their agents; a host that is up has no row.
    _table("host_health", _columns(text, "cell", "root", "health"), keys=2)
    _table(
        "host_evacuations",
        _columns(text, "id", "root"),
        _columns(sa.Boolean, "open", "released"),
        _columns(text, "record"),  # the HostEvacuation
    )
    open_ = sa.text("open")
    op.create_index(
        "host_evacuations_open", "host_evacuations", ["root"], unique=True,
        postgresql_where=open_, sqlite_where=open_,
    )  # fmt: skip
    _table("leaders", _columns(text, "work", "scheduler"), _columns(sa.Double, "until"))
    _table(
        "maintenance_events",
        _columns(text, "subject"),  # id of a maintenance window or of a host's evacuation
        _columns(sa.Double, "at"),
        _columns(text, "event", "detail"),
        keys=3,
    )
    _table(
        "maintenance_hosts",
        _columns(text, "id", "root"),
        _columns(sa.Boolean, "finished"),  # true if an operator has ended the maintenance of this host
        _columns(text, "record"),  # the WindowHost
        keys=2,
    )
    _table(
        "maintenance_moves",
        _columns(text, "move", "build", "subject", "root", "cell", "kind"),
        _columns(sa.Double, "at", "ended"),
        _columns(sa.BigInteger, "memory_mb"),
        _columns(text, "result"),
    )
    op.create_index("maintenance_moves_subject", "maintenance_moves", ["subject", "build"])
    op.create_index("maintenance_moves_build", "maintenance_moves", ["build"])
    op.create_index("maintenance_moves_ended", "maintenance_moves", ["ended"])
    _table(
        "maintenance_windows",
        _columns(text, "id"),
        _columns(sa.Boolean, "cancelled"),
        _columns(sa.Double, "drain_begins", "ended"),
        _columns(text, "record"),  # the MaintenanceWindow
    )
    _table("moving_builds", _columns(text, "build", "move"))  # at most one move of an instance waits
    op.create_index("moving_builds_move", "moving_builds", ["move"])
    _table(
        "parked",
        _columns(text, "request"),
        _columns(text, "owner"),  # the owning scheduler; empty: none
        _columns(text, "kind"),  # the equivalence class
        _columns(sa.Integer, "priority"),
        _columns(sa.Double, "since", "until"),
        _columns(text, "project", "flavor"),
        _columns(sa.Integer, "instances"),
        _columns(sa.BigInteger, "seen"),  # placement's last change number at the evaluation
        _columns(text, "message"),  # the BuildRequested as received, or the MoveStart of a move
        _columns(text, "lacks", "wakes", "decision"),
        _columns(text, "wakes_on", server_default=""),  # key of commits that may help a refused claim
        _columns(text, "cancelled", server_default=""),  # reason for a cancellation, until the owner reads it
        _columns(text, "story", server_default=""),  # tracing context of the request's message
        _columns(text, "move", server_default=""),  # type of a move; empty: a build
        # number of schedulers that ended while they evaluated the request
        _columns(sa.Integer, "strikes", server_default="0"),
    )
    cancelled = sa.text("cancelled <> ''")
    op.create_index(
        "parked_cancelled", "parked", ["owner"], postgresql_where=cancelled, sqlite_where=cancelled
    )
    op.create_index("parked_owner", "parked", ["owner"])
    op.create_index("parked_line", "parked", ["kind", sa.text("priority DESC"), "since"])
    _table(
        "open_exchanges",
        _columns(text, "id"),
        _columns(sa.Double, "at"),
        _columns(sa.Double, "due"),  # a scheduler checks it after this time
        _columns(sa.Boolean, "half_done"),  # the first instance is to be moved back
        _columns(text, "record"),  # the GuardExchange
    )
    _table("parked_builds", _columns(text, "build", "request"))
    op.create_index("parked_builds_request", "parked_builds", ["request"])
    _table(
        "priority_classes", _columns(text, "name"), _columns(sa.Integer, "priority"), _columns(text, "spec")
    )
    op.create_index("priority_classes_priority", "priority_classes", ["priority"], unique=True)
    _table(
        "schedulers",
        _columns(text, "owner"),
        _columns(sa.BigInteger, "beat"),  # grows with every heartbeat
        _columns(text, "reserved"),  # hosts that the scheduler reserves for its first waiting requests
        _columns(sa.BigInteger, "rescued"),
        _columns(text, "starts", server_default=""),  # how fast the scheduler's queues advance
        _columns(text, "served", server_default=""),  # size of the recently served requests by project
        # the pace at which the scheduler serves the backlog of each project
        _columns(text, "paces", server_default=""),
        # for which project, and since when, the scheduler reserves hosts for waiting requests
        _columns(text, "holds", server_default=""),
    )
    _table("stopped", _columns(text, "switch"), _columns(sa.Double, "since"))  # set by operators

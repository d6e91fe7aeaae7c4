"""The first schema: waiting requests, decisions, moves between cells, schedulers, hosts and clients."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001_first"
down_revision = None


def _columns(type_: Any, *names: str, **options: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, type_, nullable=False, **options) for name in names]


def _table(name: str, *columns: list[sa.Column[Any]], keys: int = 1) -> None:
    """Create a table; its primary key is its first column, or as many of its first columns as `keys`."""
    listed = [column for some in columns for column in some]
    key = sa.PrimaryKeyConstraint(*(column.name for column in listed[:keys]))
    op.create_table(name, *listed, key)


def upgrade() -> None:
    text = sa.Text
    _table(
        "backlog",  # bundles of requests of one project and priority that have not been evaluated
        _columns(text, "id"),
        _columns(text, "owner", "project"),  # the scheduler that serves the bundle; empty owner: none
        _columns(sa.Integer, "priority"),
        _columns(sa.Double, "since"),  # when the first message was sent
        _columns(sa.Integer, "requests"),  # number of messages
        _columns(text, "envelopes"),  # the messages as received
    )
    priority = sa.text("priority DESC")
    op.create_index("backlog_order", "backlog", ["owner", "project", priority, "since", "id"])
    _table("client_projects", _columns(text, "client", "project"), keys=2)
    _table("decided_builds", _columns(text, "build", "decision"))
    op.create_index("decided_builds_decision", "decided_builds", ["decision"])
    _table(
        "decisions",
        _columns(text, "id"),  # the first of the builds that the decision ended
        _columns(text, "request", "project", "reason", "decision"),
        _columns(text, "message"),  # the BuildRequested; of a move it may be unknown
        _columns(sa.Double, "at"),
        _columns(text, "move", server_default=""),  # the MoveRequested of a refused move
        _columns(text, "placed", server_default=""),  # the BuildPlaced of an instance of another system
        _columns(sa.Boolean, "external", server_default=sa.false()),  # another system builds the instance
    )
    op.create_index("decisions_at", "decisions", ["at"])
    op.create_index("decisions_request", "decisions", ["request"])
    _table(
        "handovers",
        _columns(text, "move", "build", "state"),
        _columns(sa.Double, "at"),  # time of the last change or publication
        _columns(text, "story"),  # the handover: its orders and its end
    )
    op.create_index("handovers_state", "handovers", ["state", "at"])
    _table(
        "held_hosts",  # closed while a plan of moves is executed; empty plan: being opened
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
        _columns(text, "subject"),  # of a window or of a host's evacuation
        _columns(sa.Double, "at"),
        _columns(text, "event", "detail"),
        keys=3,
    )
    _table(
        "maintenance_hosts",
        _columns(text, "id", "root"),
        _columns(sa.Boolean, "finished"),  # an operator has ended the maintenance of this host
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
        _columns(sa.BigInteger, "seen"),  # the last change number at the evaluation
        _columns(text, "message"),  # the BuildRequested as received; of a move its MoveStart
        _columns(text, "lacks", "wakes", "decision"),
        _columns(text, "cancelled", server_default=""),  # the reason, until the owner has read it
        _columns(text, "story", server_default=""),  # context of the request's message
        _columns(text, "move", server_default=""),  # the type of a move; empty: a boot
    )
    cancelled = sa.text("cancelled <> ''")
    op.create_index(
        "parked_cancelled", "parked", ["owner"], postgresql_where=cancelled, sqlite_where=cancelled
    )
    op.create_index("parked_owner", "parked", ["owner"])
    op.create_index("parked_line", "parked", ["kind", sa.text("priority DESC"), "since"])
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
        _columns(text, "reserved"),  # hosts reserved for its first waiting requests
        _columns(sa.BigInteger, "rescued"),
        _columns(text, "starts", server_default=""),  # the pace of its queues
        _columns(text, "served", server_default=""),  # from the backlog, by project
    )
    _table("stopped", _columns(text, "switch"), _columns(sa.Double, "since"))  # switches that operators set

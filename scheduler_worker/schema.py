"""Tables of the scheduler: waiting requests, refusals, moves between cells, schedulers, hosts, clients."""

from collections.abc import Collection, Iterable

from sqlalchemy import BigInteger, Column, Double, Index, Integer, MetaData, Table, Text, text

metadata = MetaData()

CANCELLED = "cancelled <> ''"

parked = Table(
    "parked",
    metadata,
    Column("request", Text, primary_key=True),
    Column("owner", Text, nullable=False),  # the owning scheduler; empty: none
    Column("kind", Text, nullable=False),  # requests alike wait in one line
    Column("priority", Integer, nullable=False),
    Column("since", Double, nullable=False),
    Column("until", Double, nullable=False),
    Column("project", Text, nullable=False),
    Column("flavor", Text, nullable=False),
    Column("instances", Integer, nullable=False),
    Column("seen", BigInteger, nullable=False),  # the last change number at the evaluation
    Column("message", Text, nullable=False),  # the BuildRequested, as it came; of a move its MoveStart
    Column("lacks", Text, nullable=False),
    Column("wakes", Text, nullable=False),
    Column("decision", Text, nullable=False),
    # the reason for its cancellation, until its owner has seen it
    Column("cancelled", Text, nullable=False, server_default=""),
    Column("story", Text, nullable=False, server_default=""),  # of the message it came with
    Column("move", Text, nullable=False, server_default=""),  # the kind of move; empty: a boot
    Index("parked_owner", "owner"),
    Index("parked_line", "kind", text("priority DESC"), "since"),
    Index("parked_cancelled", "owner", postgresql_where=text(CANCELLED), sqlite_where=text(CANCELLED)),
)

parked_builds = Table(
    "parked_builds",
    metadata,
    Column("build", Text, primary_key=True),
    Column("request", Text, nullable=False),
    Index("parked_builds_request", "request"),
)

moving_builds = Table(  # one of an instance waits at a time
    "moving_builds",
    metadata,
    Column("build", Text, primary_key=True),
    Column("move", Text, nullable=False),
    Index("moving_builds_move", "move"),
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", Text, primary_key=True),  # the first of the builds it ended
    Column("request", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("decision", Text, nullable=False),
    Column("message", Text, nullable=False),  # the BuildRequested it was about; of a move it may be unknown
    Column("at", Double, nullable=False),
    Column("move", Text, nullable=False, server_default=""),  # the MoveRequested of a refused move
    Index("decisions_request", "request"),
    Index("decisions_at", "at"),
)

decided_builds = Table(
    "decided_builds",
    metadata,
    Column("build", Text, primary_key=True),
    Column("decision", Text, nullable=False),
    Index("decided_builds_decision", "decision"),
)

handovers = Table(
    "handovers",
    metadata,
    Column("move", Text, primary_key=True),
    Column("build", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("at", Double, nullable=False),  # time of the last change or publication
    Column("story", Text, nullable=False),  # the handover: its orders and its end
    Index("handovers_state", "state", "at"),
)

schedulers = Table(
    "schedulers",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("beat", BigInteger, nullable=False),  # moves while it lives
    Column("reserved", Text, nullable=False),  # hosts reserved for its first waiting requests
    Column("rescued", BigInteger, nullable=False),
)

host_health = Table(  # of hosts that are down or closed by their agents; a host that is up has no row
    "host_health",
    metadata,
    Column("cell", Text, primary_key=True),
    Column("root", Text, primary_key=True),
    Column("health", Text, nullable=False),
)

client_projects = Table(
    "client_projects",
    metadata,
    Column("client", Text, primary_key=True),
    Column("project", Text, primary_key=True),
)


def columns_of(table: Table, names: str = "", beside: Collection[str] = ()) -> dict[str, type]:
    """Return the SQL types of the named columns of a table (empty: all columns except those `beside`)."""
    wanted = names.split() or [column.name for column in table.c if column.name not in beside]
    return {name: table.c[name].type.python_type for name in wanted}


def listed(columns: Iterable[str], table: str = "") -> str:
    return ", ".join(f"{table}.{name}" if table else name for name in columns)

"""The tables of a conductor, in the cell's database: builds, moves and ownership of nodes."""

from collections.abc import Iterable

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, MetaData, Table, Text, text

metadata = MetaData()


def status_in(statuses: Iterable[str]) -> str:
    """Return the condition in SQL. An index is used only if the query repeats its condition literally."""
    listed = ", ".join(f"'{status}'" for status in statuses)
    return f"status IN ({listed})"


UNSETTLED_STATUSES = ("building", "swapping", "deleting")
UNSETTLED = status_in(UNSETTLED_STATUSES)
OVER = "status IN ('error', 'deleted', 'moved')"
LEFTOVER = "status IN ('active', 'error', 'deleted') AND deadline > 0"
MOVING = "status IN ('moving', 'verifying', 'shelved', 'moved')"
UNDER_WAY = "status = 'open'"  # of a move
ENDED = "status = 'ended'"

NAMED = "name <> ''"
LEFT_BEHIND = "leftovers <> ''"

builds = Table(
    "builds",
    metadata,
    Column("id", Text, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("root", Text, nullable=False),  # of the current or last host
    Column("attempt", Integer, nullable=False),
    Column("generation", BigInteger),  # in placement
    Column("deadline", Double, nullable=False),
    Column("said", Double, nullable=False),  # time of the last change or message
    Column("placed", Text, nullable=False),  # the BuildPlaced as received
    Column("story", Text, nullable=False),  # read by steps only
    Column("leftovers", Text, nullable=False, server_default=""),  # leftovers on earlier hosts
    # For lists; empty in rows of a version without lists.
    Column("host", Text, nullable=False, server_default=""),
    Column("project", Text, nullable=False, server_default=""),
    Column("name", Text, nullable=False, server_default=""),
    Column("moved", Text, nullable=False, server_default=""),  # changes by moves
    Index("builds_project", "project", "id"),
    Index("builds_host", "host", "id"),
    Index("builds_root", "root", "id"),
    Index("builds_name", "name", "id", postgresql_where=text(NAMED), sqlite_where=text(NAMED)),
    # Partial: a settled build, as most are, costs these indexes nothing.
    Index(
        "builds_unsettled",
        "status",
        "deadline",
        postgresql_where=text(UNSETTLED),
        sqlite_where=text(UNSETTLED),
    ),
    Index("builds_over", "said", postgresql_where=text(OVER), sqlite_where=text(OVER)),
    Index("builds_leftover", "deadline", postgresql_where=text(LEFTOVER), sqlite_where=text(LEFTOVER)),
    Index("builds_left_behind", "id", postgresql_where=text(LEFT_BEHIND), sqlite_where=text(LEFT_BEHIND)),
    Index("builds_moving", "deadline", postgresql_where=text(MOVING), sqlite_where=text(MOVING)),
)

moves = Table(
    "moves",
    metadata,
    Column("id", Text, primary_key=True),
    Column("build", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("status", Text, nullable=False),  # open or ended
    Column("phase", Text, nullable=False),  # as displayed
    Column("source", Text, nullable=False),  # names of hosts
    Column("host", Text, nullable=False),
    Column("since", Double, nullable=False),
    Column("ended", Double, nullable=False),
    Column("placed", Text, nullable=False),  # the MovePlaced as received
    Column("story", Text, nullable=False),  # the move as its build has it
    Index("moves_build", "build"),
    Index("moves_since", "since", "id"),
    Index("moves_open", "since", "id", postgresql_where=text(UNDER_WAY), sqlite_where=text(UNDER_WAY)),
    Index("moves_ended", "ended", postgresql_where=text(ENDED), sqlite_where=text(ENDED)),
)

# Bare metal shared by several agents: pools of nodes, their agents, and the owner of each node.

ring_pools = Table(
    "ring_pools",
    metadata,
    Column("pool", Text, primary_key=True),
    Column("version", BigInteger, nullable=False),  # of its nodes: every change takes the next number
)

ring_members = Table(
    "ring_members",
    metadata,
    Column("agent", Text, primary_key=True),
    Column("pool", Text, nullable=False),
    Column("run", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("beat", BigInteger, nullable=False),
    Column("alive", Boolean, nullable=False),
    Column("disabled", Boolean, nullable=False),
    Column("lease", Double, nullable=False),
    Column("seen", BigInteger, nullable=False),
    Column("heard", Double, nullable=False),
)

ring_nodes = Table(
    "ring_nodes",
    metadata,
    Column("root", Text, primary_key=True),
    Column("pool", Text, nullable=False),
    Column("owner", Text, nullable=False),  # empty: unowned
    Column("epoch", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("leaving", Text, nullable=False),
    Column("moves_to", Text, nullable=False),
    Index("ring_nodes_changed", "pool", "version"),
    Index("ring_nodes_owner", "owner"),
)

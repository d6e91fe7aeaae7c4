"""A conductor's one table: every build of its cell, in the cell's own database."""

from sqlalchemy import BigInteger, Column, Double, Index, Integer, MetaData, Table, Text, text

metadata = MetaData()

UNSETTLED = "status IN ('building', 'swapping', 'deleting')"
OVER = "status IN ('error', 'deleted')"
LEFTOVER = "status IN ('active', 'error', 'deleted') AND deadline > 0"

NAMED = "name <> ''"

builds = Table(
    "builds",
    metadata,
    Column("id", Text, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("root", Text, nullable=False),  # of the host it is, or was last, on
    Column("attempt", Integer, nullable=False),
    Column("generation", BigInteger),  # what placement holds for it
    Column("deadline", Double, nullable=False),
    Column("said", Double, nullable=False),  # when it last changed or was last spoken of
    Column("placed", Text, nullable=False),  # the BuildPlaced, as it came
    Column("story", Text, nullable=False),  # what only a step reads
    Column("leftovers", Text, nullable=False, server_default=""),  # what may be left where it is not any more
    # What builds are listed by; empty where only a conductor of before there was a list has written it.
    Column("host", Text, nullable=False, server_default=""),
    Column("project", Text, nullable=False, server_default=""),
    Column("name", Text, nullable=False, server_default=""),
    Index("builds_project", "project", "id"),
    Index("builds_host", "host", "id"),
    Index("builds_root", "root", "id"),
    Index("builds_name", "name", "id", postgresql_where=text(NAMED), sqlite_where=text(NAMED)),
    # Partial: a build that is settled, as most are, costs these indexes nothing.
    Index(
        "builds_unsettled",
        "status",
        "deadline",
        postgresql_where=text(UNSETTLED),
        sqlite_where=text(UNSETTLED),
    ),
    Index("builds_over", "said", postgresql_where=text(OVER), sqlite_where=text(OVER)),
    Index("builds_leftover", "deadline", postgresql_where=text(LEFTOVER), sqlite_where=text(LEFTOVER)),
)

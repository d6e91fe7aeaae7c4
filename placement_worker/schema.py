"""Placement's tables: those of the Placement API, and berth's additions. Times are seconds since the epoch.

`allocations` and `consumers` are written ten thousand times a second and have no foreign keys: three checks
per row would cost more than the row. store/audit.py verifies the references instead.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
    true,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

FIRST_CUSTOM_CLASS = 10_000  # ids below it are positions in the standard list

_BIG = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself only as INTEGER
_ROOM = {"fillfactor": 80}  # PostgreSQL updates in place while a page has room
_IN_A_GROUP = text("group_id IS NOT NULL")


def _times() -> tuple[Column[float], Column[float]]:
    return Column("created_at", Double, nullable=False), Column("updated_at", Double, nullable=False)


def _reported() -> Column[bool]:
    return Column("reported", Boolean, nullable=False, server_default=true())


def _names(table: str, column: str, length: int, *, numbered: bool = True) -> Table:
    return Table(
        table,
        metadata,
        Column("id", Integer, primary_key=True, autoincrement=numbered),
        Column(column, String(length), nullable=False),
        *_times(),
        UniqueConstraint(column),
    )


projects = _names("projects", "external_id", 255)
users = _names("users", "external_id", 255)
consumer_types = _names("consumer_types", "name", 255)
resource_classes = _names("resource_classes", "name", 255, numbered=False)
traits = _names("traits", "name", 255)
aggregates = _names("aggregates", "uuid", 36)
aggregates.append_column(Column("name", String(255)))  # null: a client of the API has only named its id
aggregates.append_column(Column("metadata", Text, nullable=False, server_default="{}"))
Index(None, aggregates.c.name, unique=True)

resource_providers = Table(
    "resource_providers",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("uuid", String(36), nullable=False),
    Column("name", String(200), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("shape", BigInteger, nullable=False),  # moves only with inventory, traits, aggregates or the tree
    Column("parent_provider_id", Integer, ForeignKey("resource_providers.id")),
    Column("root_provider_id", Integer, ForeignKey("resource_providers.id")),  # null only while being made
    _reported(),
    *_times(),
    UniqueConstraint("uuid"),
    UniqueConstraint("name"),
    Index(None, "parent_provider_id"),
    Index(None, "root_provider_id"),
    postgresql_with=_ROOM,
)

inventories = Table(
    "inventories",
    metadata,
    Column("resource_provider_id", Integer, ForeignKey("resource_providers.id"), nullable=False),
    Column("resource_class_id", Integer, ForeignKey("resource_classes.id"), nullable=False),
    Column("total", Integer, nullable=False),
    Column("reserved", Integer, nullable=False),
    Column("min_unit", Integer, nullable=False),
    Column("max_unit", Integer, nullable=False),
    Column("step_size", Integer, nullable=False),
    Column("allocation_ratio", Double, nullable=False),
    Column("used", BigInteger, nullable=False),  # the sum of its allocations
    # The withheld part of `reserved`, while old inventory of its tree is in use.
    Column("withheld", Integer, nullable=False, server_default="0"),
    # The usage when the inventory was set: a lower usage is no over-allocation.
    Column("used_when_set", BigInteger, nullable=False, server_default="0"),
    _reported(),
    *_times(),
    PrimaryKeyConstraint("resource_provider_id", "resource_class_id"),
    Index(None, "resource_class_id"),
    Index(None, "withheld", postgresql_where=text("withheld > 0"), sqlite_where=text("withheld > 0")),
    postgresql_with=_ROOM,
)

provider_traits = Table(
    "resource_provider_traits",
    metadata,
    Column("resource_provider_id", Integer, ForeignKey("resource_providers.id"), nullable=False),
    Column("trait_id", Integer, ForeignKey("traits.id"), nullable=False),
    _reported(),
    *_times(),
    PrimaryKeyConstraint("resource_provider_id", "trait_id"),
    Index(None, "trait_id"),
)

provider_aggregates = Table(
    "resource_provider_aggregates",
    metadata,
    Column("resource_provider_id", Integer, ForeignKey("resource_providers.id"), nullable=False),
    Column("aggregate_id", Integer, ForeignKey("aggregates.id"), nullable=False),
    _reported(),
    *_times(),
    PrimaryKeyConstraint("resource_provider_id", "aggregate_id"),
    Index(None, "aggregate_id"),
)

consumers = Table(
    "consumers",
    metadata,
    Column("id", _BIG, primary_key=True),
    Column("uuid", String(36), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("project_id", Integer, nullable=False),
    Column("user_id", Integer, nullable=False),
    Column("consumer_type_id", Integer),  # null is reported as `unknown`
    # A client of the API claimed for it: no cell knows it.
    Column("client", Boolean, nullable=False, server_default=false()),
    # Its server group; numbers of deleted groups are never reused.
    Column("group_id", Integer),
    # Of a holder consumer: the consumer whose guest may still use its allocations.
    Column("keeps_for", String(36)),
    *_times(),
    UniqueConstraint("uuid"),
    Index(None, "project_id", "user_id"),
    Index(None, "group_id", postgresql_where=_IN_A_GROUP, sqlite_where=_IN_A_GROUP),
)

allocations = Table(
    "allocations",
    metadata,
    Column("consumer_id", _BIG, nullable=False),
    Column("resource_provider_id", Integer, nullable=False),
    Column("resource_class_id", Integer, nullable=False),
    Column("used", Integer, nullable=False),
    *_times(),
    PrimaryKeyConstraint("consumer_id", "resource_provider_id", "resource_class_id"),
    Index(None, "resource_provider_id", "resource_class_id"),
)

# Ours.

hosts = Table(  # owners of provider trees, kept after deletion: a late report cannot recreate a tree
    "hosts",
    metadata,
    Column("root", String(36), nullable=False),
    Column("cell", String(64), nullable=False),
    Column("agent", String(64), nullable=False),
    Column("host", String(200), nullable=False),
    Column("zone", Text, nullable=False),
    Column("sequence", BigInteger, nullable=False),  # of its owner's last report
    Column("gone", Boolean, nullable=False),
    *_times(),
    PrimaryKeyConstraint("root"),
)

retired_consumers = Table(  # consumers that have ended and can never claim again
    "retired_consumers",
    metadata,
    Column("uuid", String(36), nullable=False),
    Column("why", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("unplaceable", Boolean, nullable=False, server_default=false()),  # no host was found for it
    Column("cell", String(64), nullable=False, server_default=""),  # the cell that retired it; empty: none
    PrimaryKeyConstraint("uuid"),
    Index(None, "at"),
)

cells = Table(  # cells that an operator registered or disabled; others are enabled
    "cells",
    metadata,
    Column("name", String(64), nullable=False),
    Column("enabled", Boolean, nullable=False, server_default=true()),
    Column("note", Text, nullable=False, server_default=""),  # an operator's note, for example its broker
    *_times(),
    PrimaryKeyConstraint("name"),
)

server_groups = Table(  # nothing of a row changes; the lock on it keeps claims of one group apart
    "server_groups",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("uuid", String(36), nullable=False),
    Column("name", String(200), nullable=False),
    Column("project", String(255), nullable=False),
    Column("policy", String(32), nullable=False),
    Column("max_per_host", Integer, nullable=False),
    *_times(),
    UniqueConstraint("uuid"),
    UniqueConstraint("project", "name"),
    sqlite_autoincrement=True,
)

LAST_CHANGE, NAMES_EDITION, CLASS_NUMBERS, PROVIDER_NUMBERS, LAST_TOLD = 1, 2, 3, 4, 5  # rows of `changes`
AGGREGATES_TURN = 6  # another row, locked by edits of aggregates

changes = Table(  # growing numbers: of the last change, of the last published one, of the last one assigned
    "changes",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
)

change_log = Table(  # the last changes, for the relay and for readers with gaps
    "change_log",
    metadata,
    Column("number", BigInteger, nullable=False, autoincrement=False),
    Column("changes", Text, nullable=False),
    Column("aggregates", Text),  # aggregates with a changed name or metadata
    Column("cells", Text),  # cells that were registered, enabled, disabled or removed
    PrimaryKeyConstraint("number"),
)

reshaped_builds = Table(  # builds whose conductors are still to be informed, by change number
    "reshaped_builds",
    metadata,
    Column("number", BigInteger, nullable=False, autoincrement=False),
    Column("builds", Text, nullable=False),
    PrimaryKeyConstraint("number"),
)

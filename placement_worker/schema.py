"""Placement's tables: those of the Placement API, and berth's additions. Times are seconds since the epoch.

`allocations` and `consumers` are written ten thousand times a second and have no foreign keys: three checks
per row would cost more than the row. store/audit.py verifies the references instead.
"""

from typing import Any

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

FIRST_CUSTOM_CLASS = 10_000  # ids below it are positions in the standard list

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite numbers rows by itself only as INTEGER
_ROOM = {"fillfactor": 80}  # PostgreSQL updates in place while a page has room
_WITHHELD = sa.text("withheld > 0")
_IN_A_GROUP = sa.text("group_id IS NOT NULL")


def _table(name: str, *parts: sa.schema.SchemaItem, **options: Any) -> sa.Table:
    return sa.Table(name, metadata, *parts, **options)


def _columns(type_: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, type_, nullable=False) for name in names]


def _times() -> list[sa.Column[Any]]:
    return _columns(sa.Double, "created_at", "updated_at")


def _reported() -> sa.Column[bool]:
    return sa.Column("reported", sa.Boolean, nullable=False, server_default=sa.true())


def _names(table: str, column: str, length: int, *, numbered: bool = True) -> sa.Table:
    return _table(
        table,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=numbered),
        sa.Column(column, sa.String(length), nullable=False),
        *_times(),
        sa.UniqueConstraint(column),
    )


projects = _names("projects", "external_id", 255)
users = _names("users", "external_id", 255)
consumer_types = _names("consumer_types", "name", 255)
resource_classes = _names("resource_classes", "name", 255, numbered=False)
traits = _names("traits", "name", 255)
aggregates = _names("aggregates", "uuid", 36)
aggregates.append_column(sa.Column("name", sa.String(255)))  # null: a client of the API has only named its id
aggregates.append_column(sa.Column("metadata", sa.Text, nullable=False, server_default="{}"))
sa.Index(None, aggregates.c.name, unique=True)

resource_providers = _table(
    "resource_providers",
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uuid", sa.String(36), nullable=False),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("shape", sa.BigInteger, nullable=False),  # grows with inventory, traits, aggregates, tree
    sa.Column("parent_provider_id", sa.Integer, sa.ForeignKey("resource_providers.id")),
    sa.Column("root_provider_id", sa.Integer, sa.ForeignKey("resource_providers.id")),  # null at first
    _reported(),
    *_times(),
    sa.UniqueConstraint("uuid"),
    sa.UniqueConstraint("name"),
    sa.Index(None, "parent_provider_id"),
    sa.Index(None, "root_provider_id"),
    postgresql_with=_ROOM,
)

inventories = _table(
    "inventories",
    sa.Column("resource_provider_id", sa.Integer, sa.ForeignKey("resource_providers.id"), nullable=False),
    sa.Column("resource_class_id", sa.Integer, sa.ForeignKey("resource_classes.id"), nullable=False),
    *_columns(sa.Integer, "total", "reserved", "min_unit", "max_unit", "step_size"),
    sa.Column("allocation_ratio", sa.Double, nullable=False),
    sa.Column("used", sa.BigInteger, nullable=False),  # the sum of its allocations
    # The withheld part of `reserved`, while old inventory of its tree is in use.
    sa.Column("withheld", sa.Integer, nullable=False, server_default="0"),
    # The usage when the inventory was set: a lower usage is no over-allocation.
    sa.Column("used_when_set", sa.BigInteger, nullable=False, server_default="0"),
    _reported(),
    *_times(),
    sa.PrimaryKeyConstraint("resource_provider_id", "resource_class_id"),
    sa.Index(None, "resource_class_id"),
    sa.Index(None, "withheld", postgresql_where=_WITHHELD, sqlite_where=_WITHHELD),
    postgresql_with=_ROOM,
)


def _contents(table: str, column: str, of: str) -> sa.Table:
    return _table(
        table,
        sa.Column("resource_provider_id", sa.Integer, sa.ForeignKey("resource_providers.id"), nullable=False),
        sa.Column(column, sa.Integer, sa.ForeignKey(of), nullable=False),
        _reported(),
        *_times(),
        sa.PrimaryKeyConstraint("resource_provider_id", column),
        sa.Index(None, column),
    )


provider_traits = _contents("resource_provider_traits", "trait_id", "traits.id")
provider_aggregates = _contents("resource_provider_aggregates", "aggregate_id", "aggregates.id")

consumers = _table(
    "consumers",
    sa.Column("id", _BIG, primary_key=True),
    sa.Column("uuid", sa.String(36), nullable=False),
    sa.Column("generation", sa.BigInteger, nullable=False),
    *_columns(sa.Integer, "project_id", "user_id"),
    sa.Column("consumer_type_id", sa.Integer),  # null is reported as `unknown`
    # A client of the API claimed for it: no cell knows it.
    sa.Column("client", sa.Boolean, nullable=False, server_default=sa.false()),
    # Its server group; numbers of deleted groups are never reused.
    sa.Column("group_id", sa.Integer),
    # Of a holder consumer: the consumer whose guest may still use its allocations.
    sa.Column("keeps_for", sa.String(36)),
    *_times(),
    sa.UniqueConstraint("uuid"),
    sa.Index(None, "project_id", "user_id"),
    sa.Index(None, "group_id", postgresql_where=_IN_A_GROUP, sqlite_where=_IN_A_GROUP),
)

allocations = _table(
    "allocations",
    sa.Column("consumer_id", _BIG, nullable=False),
    *_columns(sa.Integer, "resource_provider_id", "resource_class_id", "used"),
    *_times(),
    sa.PrimaryKeyConstraint("consumer_id", "resource_provider_id", "resource_class_id"),
    sa.Index(None, "resource_provider_id", "resource_class_id"),
)

hosts = _table(  # owners of provider trees, kept after deletion: a late report cannot recreate a tree
    "hosts",
    sa.Column("root", sa.String(36), nullable=False),
    *_columns(sa.String(64), "cell", "agent"),
    sa.Column("host", sa.String(200), nullable=False),
    sa.Column("zone", sa.Text, nullable=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),  # of its owner's last report
    sa.Column("gone", sa.Boolean, nullable=False),
    *_times(),
    sa.PrimaryKeyConstraint("root"),
)

retired_consumers = _table(  # consumers that have ended and can never claim again
    "retired_consumers",
    sa.Column("uuid", sa.String(36), nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("unplaceable", sa.Boolean, nullable=False, server_default=sa.false()),  # no host was found
    sa.Column("cell", sa.String(64), nullable=False, server_default=""),  # which retired it; empty: none
    sa.PrimaryKeyConstraint("uuid"),
    sa.Index(None, "at"),
)

cells = _table(  # cells that an operator registered or disabled; others are enabled
    "cells",
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("enabled", sa.Boolean, nullable=False, server_default=sa.true()),
    sa.Column("note", sa.Text, nullable=False, server_default=""),  # an operator's
    *_times(),
    sa.PrimaryKeyConstraint("name"),
)

server_groups = _table(  # nothing of a row changes; the lock on it keeps claims of one group apart
    "server_groups",
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uuid", sa.String(36), nullable=False),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("project", sa.String(255), nullable=False),
    sa.Column("policy", sa.String(32), nullable=False),
    sa.Column("max_per_host", sa.Integer, nullable=False),
    *_times(),
    sa.UniqueConstraint("uuid"),
    sa.UniqueConstraint("project", "name"),
    sqlite_autoincrement=True,
)

LAST_CHANGE, NAMES_EDITION, CLASS_NUMBERS, PROVIDER_NUMBERS, LAST_TOLD = 1, 2, 3, 4, 5  # rows of `changes`
AGGREGATES_TURN = 6  # another row, locked by edits of aggregates

changes = _table(  # growing numbers, each in one of the rows above
    "changes",
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, nullable=False),
)

change_log = _table(  # the last changes, for the relay and for readers with gaps
    "change_log",
    sa.Column("number", sa.BigInteger, nullable=False, autoincrement=False),
    sa.Column("changes", sa.Text, nullable=False),
    sa.Column("aggregates", sa.Text),  # aggregates with a changed name or metadata
    sa.Column("cells", sa.Text),  # cells that were registered, enabled, disabled or removed
    sa.PrimaryKeyConstraint("number"),
)

reshaped_builds = _table(  # builds whose conductors are still to be informed, by change number
    "reshaped_builds",
    sa.Column("number", sa.BigInteger, nullable=False, autoincrement=False),
    sa.Column("builds", sa.Text, nullable=False),
    sa.PrimaryKeyConstraint("number"),
)

"""The first migration: tables of the Placement API, and berth's additions. Times are seconds since the epoch.

`allocations` and `consumers` are written ten thousand times a second and have no foreign keys: three checks
per row would cost more than the row. `berth audit` verifies the references instead.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001_first"
down_revision = None

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_ROOM = {"postgresql_with": {"fillfactor": 80}}  # updates are cheap if the new row fits on the same page
_metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _columns(type_: Any, *names: str, **options: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, type_, nullable=False, **options) for name in names]


def _times() -> list[sa.Column[Any]]:
    return _columns(sa.Double, "created_at", "updated_at")


def _where(condition: str) -> dict[str, Any]:
    return {"postgresql_where": sa.text(condition), "sqlite_where": sa.text(condition)}


def _table(name: str, *parts: Any, keys: tuple[str, ...], **options: Any) -> None:
    listed = [part for some in parts for part in (some if isinstance(some, list) else [some])]
    sa.Table(name, _metadata, *listed, sa.PrimaryKeyConstraint(*keys), **options)


def _numbered(table: str, name: str, length: int, *more: Any, numbered: bool = True) -> None:
    id_ = _columns(sa.Integer, "id", autoincrement=numbered)
    named = _columns(sa.String(length), name)
    _table(table, id_, named, _times(), *more, sa.UniqueConstraint(name), keys=("id",))


def _of_provider(table: str, column: str, target: str) -> None:
    _table(
        table,
        sa.Column("resource_provider_id", sa.Integer, sa.ForeignKey("resource_providers.id"), nullable=False),
        sa.Column(column, sa.Integer, sa.ForeignKey(target), nullable=False),
        _columns(sa.Boolean, "reported", server_default=sa.true()),
        _times(),
        sa.Index(None, column),
        keys=("resource_provider_id", column),
    )


def _names() -> None:
    metadata = _columns(sa.Text, "metadata", server_default="{}")
    # Null: a client of the API used the id of an aggregate that has no name.
    name = [sa.Column("name", sa.String(255)), sa.Index(None, "name", unique=True)]
    _numbered("aggregates", "uuid", 36, name, metadata)
    _numbered("consumer_types", "name", 255)
    _numbered("projects", "external_id", 255)
    _numbered("resource_classes", "name", 255, numbered=False)
    _numbered("traits", "name", 255)
    _numbered("users", "external_id", 255)


def _providers() -> None:
    _table(
        "resource_providers",
        _columns(sa.Integer, "id"),
        _columns(sa.String(36), "uuid"),
        _columns(sa.String(200), "name"),
        _columns(
            sa.BigInteger, "generation", "shape"
        ),  # shape: grows when inventories, traits, aggregates or the place in the tree change
        sa.Column("parent_provider_id", sa.Integer, sa.ForeignKey("resource_providers.id")),
        sa.Column("root_provider_id", sa.Integer, sa.ForeignKey("resource_providers.id")),
        _columns(sa.Boolean, "reported", server_default=sa.true()),
        _times(),
        sa.UniqueConstraint("name"),
        sa.UniqueConstraint("uuid"),
        sa.Index(None, "parent_provider_id"),
        sa.Index(None, "root_provider_id"),
        keys=("id",),
        **_ROOM,
    )
    _table(
        "inventories",
        sa.Column("resource_provider_id", sa.Integer, sa.ForeignKey("resource_providers.id"), nullable=False),
        sa.Column("resource_class_id", sa.Integer, sa.ForeignKey("resource_classes.id"), nullable=False),
        _columns(sa.Integer, "total", "reserved", "min_unit", "max_unit", "step_size"),
        _columns(sa.Double, "allocation_ratio"),
        _columns(sa.BigInteger, "used"),  # sum of the allocations of this inventory
        # The withheld part of `reserved`, while old inventory of the tree is in use.
        _columns(sa.Integer, "withheld", server_default="0"),
        # The usage when the inventory was set: above the capacity, usage up to this amount is no error.
        _columns(sa.BigInteger, "used_when_set", server_default="0"),
        _columns(sa.Boolean, "reported", server_default=sa.true()),
        _times(),
        sa.Index(None, "resource_class_id"),
        sa.Index(None, "withheld", **_where("withheld > 0")),
        keys=("resource_provider_id", "resource_class_id"),
        **_ROOM,
    )
    _of_provider("resource_provider_aggregates", "aggregate_id", "aggregates.id")
    _of_provider("resource_provider_traits", "trait_id", "traits.id")


def _consumers() -> None:
    _table(
        "consumers",
        _columns(_BIG, "id"),
        _columns(sa.String(36), "uuid"),
        _columns(sa.BigInteger, "generation"),
        _columns(sa.Integer, "project_id", "user_id"),
        sa.Column("consumer_type_id", sa.Integer),  # null: no type, reported as `unknown`
        # True: claimed by a client of the API; no cell has a record of the consumer.
        _columns(sa.Boolean, "client", server_default=sa.false()),
        # For a holder consumer: the consumer for which it holds allocations. For a consumer of an API client:
        # the moved instance of which it is a part, and with which it is counted once.
        sa.Column("keeps_for", sa.String(36)),
        _times(),
        sa.UniqueConstraint("uuid"),
        sa.Index(None, "project_id", "user_id"),
        keys=("id",),
    )
    _table(
        "allocations",
        _columns(_BIG, "consumer_id"),
        _columns(sa.Integer, "resource_provider_id", "resource_class_id", "used"),
        _times(),
        sa.Index(None, "resource_provider_id", "resource_class_id"),
        keys=("consumer_id", "resource_provider_id", "resource_class_id"),
    )
    _table(  # consumers that have ended and can never claim again
        "retired_consumers",
        _columns(sa.String(36), "uuid"),
        _columns(sa.Text, "why"),
        _columns(sa.Double, "at"),
        _columns(sa.Boolean, "unplaceable", server_default=sa.false()),  # no host was found
        _columns(sa.String(64), "cell", server_default=""),  # cell that retired it, or ""
        _columns(sa.Boolean, "revivable", server_default=sa.false()),  # by a move
        _columns(sa.String(255), "project", server_default=""),  # of a move that a claim has begun
        sa.Index(None, "at"),
        keys=("uuid",),
    )


def _of_berth() -> None:
    _table(  # cells that an operator registered or disabled; other cells are enabled
        "cells",
        _columns(sa.String(64), "name"),
        _columns(sa.Boolean, "enabled", server_default=sa.true()),
        _columns(sa.Text, "note", server_default=""),
        _times(),
        keys=("name",),
    )
    _table(  # owners of trees, kept after deletion: a late report cannot recreate a tree
        "hosts",
        _columns(sa.String(36), "root"),
        _columns(sa.String(64), "cell", "agent"),
        _columns(sa.String(200), "host"),
        _columns(sa.Text, "zone"),
        _columns(sa.BigInteger, "sequence"),  # sequence number of the owner's last report
        _columns(sa.Boolean, "gone"),
        _columns(sa.Text, "labels"),  # JSON of HostLabels, or empty
        _times(),
        keys=("root",),
    )
    number = _columns(sa.BigInteger, "number", autoincrement=False)
    # The last changes, for the relay and for readers that have missed changes.
    texts = [
        _columns(sa.Text, "changes"),
        *(sa.Column(name, sa.Text) for name in ("aggregates", "cells", "wakes")),
        sa.Column("at", sa.Double),  # time of the commit
        sa.Column("trees", sa.Text),  # JSON of KnownTrees: the reshaped trees
        sa.Column("consumers", sa.Text),  # JSON of ConsumerChanges
        sa.Column("renamed", sa.Text),  # JSON: both names of a resource class
    ]
    _table("change_log", number, *texts, keys=("number",))
    # Unpublished BuildReshaped messages, by change number.
    number = _columns(sa.BigInteger, "number", autoincrement=False)
    _table("reshaped_builds", number, _columns(sa.Text, "builds"), keys=("number",))
    id_ = _columns(sa.Integer, "id", autoincrement=False)
    # `rules` in the row of the last change number: the version of data that rules of features keep in memory.
    numbers = [*_columns(sa.BigInteger, "number"), *_columns(sa.BigInteger, "rules", server_default="0")]
    _table("changes", id_, numbers, keys=("id",))


def upgrade() -> None:
    _metadata.clear()
    _names()
    _providers()
    _consumers()
    _of_berth()
    _metadata.create_all(op.get_bind(), checkfirst=False)

    # Rows for the numbers of the last change and of the last published change.
    op.execute("INSERT INTO changes (id, number) VALUES (1, 0), (5, 0)")

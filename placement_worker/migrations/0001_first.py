"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001_first"
down_revision = None

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_ROOM = {"fillfactor": 80}


def _times() -> tuple[sa.Column[float], sa.Column[float]]:
    return (
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
    )


def _names(table: str, column: str, length: int, *, numbered: bool = True) -> None:
    op.create_table(
        table,
        sa.Column("id", sa.Integer, autoincrement=numbered, nullable=False),
        sa.Column(column, sa.String(length), nullable=False),
        *_times(),
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
        sa.UniqueConstraint(column, name=f"uq_{table}_{column}"),
    )


def _provider(table: str) -> tuple[sa.Column[int], sa.ForeignKeyConstraint]:
    column = "resource_provider_id"
    return (
        sa.Column(column, sa.Integer, nullable=False),
        sa.ForeignKeyConstraint([column], ["resource_providers.id"], name=f"fk_{table}_{column}"),
    )


def _pairs(table: str, column: str, other: str) -> None:
    op.create_table(
        table,
        *_provider(table),
        sa.Column(column, sa.Integer, nullable=False),
        *_times(),
        sa.PrimaryKeyConstraint("resource_provider_id", column, name=f"pk_{table}"),
        sa.ForeignKeyConstraint([column], [f"{other}.id"], name=f"fk_{table}_{column}"),
    )
    op.create_index(f"ix_{table}_{column}", table, [column])


def upgrade() -> None:
    _names("projects", "external_id", 255)
    _names("users", "external_id", 255)
    _names("consumer_types", "name", 255)
    _names("resource_classes", "name", 255, numbered=False)
    _names("traits", "name", 255)
    _names("aggregates", "uuid", 36)
    _providers()
    _pairs("resource_provider_traits", "trait_id", "traits")
    _pairs("resource_provider_aggregates", "aggregate_id", "aggregates")
    _consumers()
    _ours()


def _providers() -> None:
    op.create_table(
        "resource_providers",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("shape", sa.BigInteger, nullable=False),
        sa.Column("parent_provider_id", sa.Integer),
        sa.Column("root_provider_id", sa.Integer),
        *_times(),
        sa.PrimaryKeyConstraint("id", name="pk_resource_providers"),
        sa.ForeignKeyConstraint(
            ["parent_provider_id"], ["resource_providers.id"], name="fk_resource_providers_parent_provider_id"
        ),
        sa.ForeignKeyConstraint(
            ["root_provider_id"], ["resource_providers.id"], name="fk_resource_providers_root_provider_id"
        ),
        sa.UniqueConstraint("uuid", name="uq_resource_providers_uuid"),
        sa.UniqueConstraint("name", name="uq_resource_providers_name"),
        postgresql_with=_ROOM,
    )
    for column in ("parent_provider_id", "root_provider_id"):
        op.create_index(f"ix_resource_providers_{column}", "resource_providers", [column])
    op.create_table(
        "inventories",
        *_provider("inventories"),
        sa.Column("resource_class_id", sa.Integer, nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("reserved", sa.Integer, nullable=False),
        sa.Column("min_unit", sa.Integer, nullable=False),
        sa.Column("max_unit", sa.Integer, nullable=False),
        sa.Column("step_size", sa.Integer, nullable=False),
        sa.Column("allocation_ratio", sa.Double, nullable=False),
        sa.Column("used", sa.BigInteger, nullable=False),
        *_times(),
        sa.PrimaryKeyConstraint("resource_provider_id", "resource_class_id", name="pk_inventories"),
        sa.ForeignKeyConstraint(
            ["resource_class_id"], ["resource_classes.id"], name="fk_inventories_resource_class_id"
        ),
        postgresql_with=_ROOM,
    )
    op.create_index("ix_inventories_resource_class_id", "inventories", ["resource_class_id"])


def _consumers() -> None:
    op.create_table(
        "consumers",
        sa.Column("id", _BIG, nullable=False),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("project_id", sa.Integer, nullable=False),
        sa.Column("user_id", sa.Integer, nullable=False),
        sa.Column("consumer_type_id", sa.Integer),
        *_times(),
        sa.PrimaryKeyConstraint("id", name="pk_consumers"),
        sa.UniqueConstraint("uuid", name="uq_consumers_uuid"),
    )
    keys = ["consumer_id", "resource_provider_id", "resource_class_id"]
    op.create_table(
        "allocations",
        sa.Column("consumer_id", _BIG, nullable=False),
        sa.Column("resource_provider_id", sa.Integer, nullable=False),
        sa.Column("resource_class_id", sa.Integer, nullable=False),
        sa.Column("used", sa.Integer, nullable=False),
        *_times(),
        sa.PrimaryKeyConstraint(*keys, name="pk_allocations"),
    )
    op.create_index("ix_allocations_" + "_".join(keys[1:]), "allocations", keys[1:])


def _ours() -> None:
    op.create_table(
        "hosts",
        sa.Column("root", sa.String(36), nullable=False),
        sa.Column("cell", sa.String(64), nullable=False),
        sa.Column("agent", sa.String(64), nullable=False),
        sa.Column("host", sa.String(200), nullable=False),
        sa.Column("zone", sa.Text, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("gone", sa.Boolean, nullable=False),
        *_times(),
        sa.PrimaryKeyConstraint("root", name="pk_hosts"),
    )
    op.create_table(
        "retired_consumers",
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("uuid", name="pk_retired_consumers"),
    )
    op.create_index("ix_retired_consumers_at", "retired_consumers", ["at"])
    changes = op.create_table(
        "changes",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_changes"),
    )
    op.bulk_insert(changes, [{"id": 1, "number": 0}])
    op.create_table(
        "outbox",
        sa.Column("id", _BIG, autoincrement=True, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("envelope", sa.Text, nullable=False),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
        sqlite_autoincrement=True,
    )

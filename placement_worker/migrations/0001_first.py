"""The first schema."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001_first"
down_revision = None

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _where(condition: str) -> dict[str, Any]:
    return {"postgresql_where": sa.text(condition), "sqlite_where": sa.text(condition)}


def upgrade() -> None:
    op.create_table(
        "aggregates",
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.Column("name", sa.String(255)),
        sa.Column("metadata", sa.Text, server_default="{}", nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_aggregates"),
        sa.UniqueConstraint("uuid", name="uq_aggregates_uuid"),
    )
    op.create_index("ix_aggregates_name", "aggregates", ["name"], unique=True)
    op.create_table(
        "allocations",
        sa.Column("consumer_id", _BIG, nullable=False),
        sa.Column("resource_provider_id", sa.Integer, nullable=False),
        sa.Column("resource_class_id", sa.Integer, nullable=False),
        sa.Column("used", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint(
            "consumer_id", "resource_provider_id", "resource_class_id", name="pk_allocations"
        ),
    )
    op.create_index(
        "ix_allocations_resource_provider_id_resource_class_id",
        "allocations",
        ["resource_provider_id", "resource_class_id"],
    )
    op.create_table(
        "cells",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("enabled", sa.Boolean, server_default=sa.true(), nullable=False),
        sa.Column("note", sa.Text, server_default="", nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_cells"),
    )
    op.create_table(
        "change_log",
        sa.Column("number", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("changes", sa.Text, nullable=False),
        sa.Column("aggregates", sa.Text),
        sa.Column("cells", sa.Text),
        sa.PrimaryKeyConstraint("number", name="pk_change_log"),
    )
    op.create_table(
        "changes",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_changes"),
    )
    op.create_table(
        "consumer_types",
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_consumer_types"),
        sa.UniqueConstraint("name", name="uq_consumer_types_name"),
    )
    op.create_table(
        "consumers",
        sa.Column("id", _BIG, nullable=False),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("project_id", sa.Integer, nullable=False),
        sa.Column("user_id", sa.Integer, nullable=False),
        sa.Column("consumer_type_id", sa.Integer),
        sa.Column("client", sa.Boolean, server_default=sa.false(), nullable=False),
        sa.Column("group_id", sa.Integer),
        sa.Column("keeps_for", sa.String(36)),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_consumers"),
        sa.UniqueConstraint("uuid", name="uq_consumers_uuid"),
    )
    op.create_index("ix_consumers_group_id", "consumers", ["group_id"], **_where("group_id IS NOT NULL"))
    op.create_index("ix_consumers_project_id_user_id", "consumers", ["project_id", "user_id"])
    op.create_table(
        "hosts",
        sa.Column("root", sa.String(36), nullable=False),
        sa.Column("cell", sa.String(64), nullable=False),
        sa.Column("agent", sa.String(64), nullable=False),
        sa.Column("host", sa.String(200), nullable=False),
        sa.Column("zone", sa.Text, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("gone", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("root", name="pk_hosts"),
    )
    op.create_table(
        "projects",
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("external_id", sa.String(255), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_projects"),
        sa.UniqueConstraint("external_id", name="uq_projects_external_id"),
    )
    op.create_table(
        "reshaped_builds",
        sa.Column("number", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("builds", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_reshaped_builds"),
    )
    op.create_table(
        "resource_classes",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_resource_classes"),
        sa.UniqueConstraint("name", name="uq_resource_classes_name"),
    )
    op.create_table(
        "resource_providers",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("shape", sa.BigInteger, nullable=False),
        sa.Column("parent_provider_id", sa.Integer),
        sa.Column("root_provider_id", sa.Integer),
        sa.Column("reported", sa.Boolean, server_default=sa.true(), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(
            ["parent_provider_id"], ["resource_providers.id"], name="fk_resource_providers_parent_provider_id"
        ),
        sa.ForeignKeyConstraint(
            ["root_provider_id"], ["resource_providers.id"], name="fk_resource_providers_root_provider_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_resource_providers"),
        sa.UniqueConstraint("name", name="uq_resource_providers_name"),
        sa.UniqueConstraint("uuid", name="uq_resource_providers_uuid"),
        postgresql_with={"fillfactor": 80},
    )
    op.create_index("ix_resource_providers_parent_provider_id", "resource_providers", ["parent_provider_id"])
    op.create_index("ix_resource_providers_root_provider_id", "resource_providers", ["root_provider_id"])
    op.create_table(
        "retired_consumers",
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("unplaceable", sa.Boolean, server_default=sa.false(), nullable=False),
        sa.Column("cell", sa.String(64), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("uuid", name="pk_retired_consumers"),
    )
    op.create_index("ix_retired_consumers_at", "retired_consumers", ["at"])
    op.create_table(
        "server_groups",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("project", sa.String(255), nullable=False),
        sa.Column("policy", sa.String(32), nullable=False),
        sa.Column("max_per_host", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_server_groups"),
        sa.UniqueConstraint("project", "name", name="uq_server_groups_project_name"),
        sa.UniqueConstraint("uuid", name="uq_server_groups_uuid"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "traits",
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_traits"),
        sa.UniqueConstraint("name", name="uq_traits_name"),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("external_id", sa.String(255), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.UniqueConstraint("external_id", name="uq_users_external_id"),
    )
    op.create_table(
        "inventories",
        sa.Column("resource_provider_id", sa.Integer, nullable=False),
        sa.Column("resource_class_id", sa.Integer, nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("reserved", sa.Integer, nullable=False),
        sa.Column("min_unit", sa.Integer, nullable=False),
        sa.Column("max_unit", sa.Integer, nullable=False),
        sa.Column("step_size", sa.Integer, nullable=False),
        sa.Column("allocation_ratio", sa.Double, nullable=False),
        sa.Column("used", sa.BigInteger, nullable=False),
        sa.Column("withheld", sa.Integer, server_default="0", nullable=False),
        sa.Column("used_when_set", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("reported", sa.Boolean, server_default=sa.true(), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(
            ["resource_class_id"], ["resource_classes.id"], name="fk_inventories_resource_class_id"
        ),
        sa.ForeignKeyConstraint(
            ["resource_provider_id"], ["resource_providers.id"], name="fk_inventories_resource_provider_id"
        ),
        sa.PrimaryKeyConstraint("resource_provider_id", "resource_class_id", name="pk_inventories"),
        postgresql_with={"fillfactor": 80},
    )
    op.create_index("ix_inventories_resource_class_id", "inventories", ["resource_class_id"])
    op.create_index("ix_inventories_withheld", "inventories", ["withheld"], **_where("withheld > 0"))
    op.create_table(
        "resource_provider_aggregates",
        sa.Column("resource_provider_id", sa.Integer, nullable=False),
        sa.Column("aggregate_id", sa.Integer, nullable=False),
        sa.Column("reported", sa.Boolean, server_default=sa.true(), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(
            ["aggregate_id"], ["aggregates.id"], name="fk_resource_provider_aggregates_aggregate_id"
        ),
        sa.ForeignKeyConstraint(
            ["resource_provider_id"],
            ["resource_providers.id"],
            name="fk_resource_provider_aggregates_resource_provider_id",
        ),
        sa.PrimaryKeyConstraint(
            "resource_provider_id", "aggregate_id", name="pk_resource_provider_aggregates"
        ),
    )
    op.create_index(
        "ix_resource_provider_aggregates_aggregate_id", "resource_provider_aggregates", ["aggregate_id"]
    )
    op.create_table(
        "resource_provider_traits",
        sa.Column("resource_provider_id", sa.Integer, nullable=False),
        sa.Column("trait_id", sa.Integer, nullable=False),
        sa.Column("reported", sa.Boolean, server_default=sa.true(), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(
            ["resource_provider_id"],
            ["resource_providers.id"],
            name="fk_resource_provider_traits_resource_provider_id",
        ),
        sa.ForeignKeyConstraint(["trait_id"], ["traits.id"], name="fk_resource_provider_traits_trait_id"),
        sa.PrimaryKeyConstraint("resource_provider_id", "trait_id", name="pk_resource_provider_traits"),
    )
    op.create_index("ix_resource_provider_traits_trait_id", "resource_provider_traits", ["trait_id"])

    # the numbers of the last change, and of the last published change
    op.execute("INSERT INTO changes (id, number) VALUES (1, 0), (5, 0)")

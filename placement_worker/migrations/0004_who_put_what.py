"""Record the origin of contents, withheld amounts, and the usage at the time an inventory was set.

Processes from before this migration continue: their writes count as reported. An index finds the allocations
of a project.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004_who_put_what"
down_revision = "0003_told_from_the_log"

OF_PROVIDERS = ("inventories", "resource_provider_traits", "resource_provider_aggregates")


def _no_report_ever(provider: str) -> str:
    return (
        "NOT EXISTS (SELECT 1 FROM resource_providers p"
        " JOIN resource_providers r ON r.id = p.root_provider_id JOIN hosts h ON h.root = r.uuid"
        f" WHERE p.id = {provider} AND h.sequence >= 0)"
    )


def upgrade() -> None:
    for table in ("resource_providers", *OF_PROVIDERS):
        op.add_column(table, sa.Column("reported", sa.Boolean, nullable=False, server_default=sa.true()))
    op.execute(
        f"UPDATE resource_providers SET reported = false WHERE {_no_report_ever('resource_providers.id')}"
    )
    for table in OF_PROVIDERS:
        nobody = _no_report_ever(f"{table}.resource_provider_id")
        op.execute(f"UPDATE {table} SET reported = false WHERE {nobody}")
    op.add_column("inventories", sa.Column("withheld", sa.Integer, nullable=False, server_default="0"))
    op.add_column(
        "inventories", sa.Column("used_when_set", sa.BigInteger, nullable=False, server_default="0")
    )
    op.execute("UPDATE inventories SET used_when_set = used")
    op.add_column("consumers", sa.Column("client", sa.Boolean, nullable=False, server_default=sa.false()))
    op.create_index(
        "ix_inventories_withheld",
        "inventories",
        ["withheld"],
        postgresql_where=sa.text("withheld > 0"),
        sqlite_where=sa.text("withheld > 0"),
    )
    op.create_index("ix_consumers_project_id_user_id", "consumers", ["project_id", "user_id"])


def downgrade() -> None:
    op.drop_index("ix_consumers_project_id_user_id", "consumers")
    op.drop_index("ix_inventories_withheld", "inventories")
    op.drop_column("consumers", "client")
    op.drop_column("inventories", "used_when_set")
    op.drop_column("inventories", "withheld")
    for table in ("resource_providers", *OF_PROVIDERS):
        op.drop_column(table, "reported")

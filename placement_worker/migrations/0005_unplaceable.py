"""Mark consumers that were retired for lack of a host; before, only the beginning of their reason showed
it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005_unplaceable"
down_revision = "0004_who_put_what"

PREFIX = "unplaceable: "


def upgrade() -> None:
    column = sa.Column("unplaceable", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("retired_consumers", column)
    op.execute(f"UPDATE retired_consumers SET unplaceable = true WHERE why LIKE '{PREFIX}%'")


def downgrade() -> None:
    op.execute(
        f"UPDATE retired_consumers SET why = '{PREFIX}' || why WHERE unplaceable AND why NOT LIKE '{PREFIX}%'"
    )
    op.drop_column("retired_consumers", "unplaceable")

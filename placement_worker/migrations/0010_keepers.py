"""Record for which instance a holder consumer holds its allocations."""

import sqlalchemy as sa
from alembic import op

revision = "0010_keepers"
down_revision = "0009_reshaped_builds"


def upgrade() -> None:
    op.add_column("consumers", sa.Column("keeps_for", sa.String(36)))


def downgrade() -> None:
    op.drop_column("consumers", "keeps_for")

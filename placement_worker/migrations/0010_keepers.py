"""Whose place a consumer keeps: of an instance that left it, and of which a guest may still be there.

Who keeps one already is not known to keep it for anybody, and neither is whom processes from before this
migration let keep one: a server group counts him as somebody of his own.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010_keepers"
down_revision = "0009_reshaped_builds"


def upgrade() -> None:
    op.add_column("consumers", sa.Column("keeps_for", sa.String(36)))


def downgrade() -> None:
    op.drop_column("consumers", "keeps_for")

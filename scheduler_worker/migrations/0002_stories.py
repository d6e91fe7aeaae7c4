"""A request that waits keeps the story of its message: what becomes of it goes on with its trace.

Processes from before this migration leave it out: what they keep begins a story of its own, as it did.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002_stories"
down_revision = "0001_first"


def upgrade() -> None:
    op.add_column("parked", sa.Column("story", sa.Text, nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("parked", "story")

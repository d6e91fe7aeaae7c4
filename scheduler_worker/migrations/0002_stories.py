"""Store the correlation and trace of a waiting request, so that its end belongs to the same trace.

Processes from before this migration leave it empty: their requests begin a new trace.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002_stories"
down_revision = "0001_first"


def upgrade() -> None:
    op.add_column("parked", sa.Column("story", sa.Text, nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("parked", "story")

"""Let moves wait for capacity, one per instance, and store why a move was refused.

Processes from before this migration skip waiting moves, which they cannot read. Adopted moves wait until
such a process is restarted.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003_moves"
down_revision = "0002_stories"


def upgrade() -> None:
    op.add_column("parked", sa.Column("move", sa.Text, nullable=False, server_default=""))
    op.add_column("decisions", sa.Column("move", sa.Text, nullable=False, server_default=""))
    op.create_table(
        "moving_builds",
        sa.Column("build", sa.Text, primary_key=True),
        sa.Column("move", sa.Text, nullable=False),
    )
    op.create_index("moving_builds_move", "moving_builds", ["move"])


def downgrade() -> None:
    op.drop_table("moving_builds")
    op.drop_column("decisions", "move")
    op.drop_column("parked", "move")

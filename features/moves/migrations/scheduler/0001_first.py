"""The first schema of moves in the database of schedulers: moves between cells, and plans of moves."""

import sqlalchemy as sa
from alembic import op

from bus.sql.schema import columns, table

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "handovers",
        sa.Column("move", sa.Text, primary_key=True),
        sa.Column("build", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),  # when the state was last changed or published
        sa.Column("story", sa.Text, nullable=False),  # the `Handover` as JSON
    )
    op.create_index("handovers_state", "handovers", ["state", "at"])

    text, number, time = sa.Text, sa.BigInteger, sa.Double
    table(
        "move_plans",
        columns(text, "id"),
        columns(time, "began", "ended"),  # ended: 0 while the plan goes on
        columns(number, "version"),
        columns(text, "record", "memo"),  # the PlanStands; what the kind of the plan has noted
    )
    op.create_index("move_plans_ended", "move_plans", ["ended"])
    table("move_plan_hosts", columns(text, "plan", "root"), keys=2)  # the hosts that plans empty
    op.create_index("move_plan_hosts_root", "move_plan_hosts", ["root"])
    table(
        "planned_moves",
        columns(text, "move", "build", "plan", "root", "kind"),
        columns(time, "at", "ended"),
        columns(number, "changed", "memory_mb"),  # changed: the version of the plan
        columns(text, "result", "code", "host", "request"),  # request: the MoveRequested
    )
    op.create_index("planned_moves_plan", "planned_moves", ["plan", "changed"])
    op.create_index("planned_moves_build", "planned_moves", ["build"])
    op.create_index("planned_moves_ended", "planned_moves", ["ended"])

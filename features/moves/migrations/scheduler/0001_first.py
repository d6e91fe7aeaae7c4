"""The first schema of moves in the database of schedulers: moves between cells, and plans of moves."""

import sqlalchemy as sa

from bus.sql.schema import columns, index, table

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    text, number, time = sa.Text, sa.BigInteger, sa.Double
    table(
        "handovers",
        columns(text, "move", "build", "state"),
        columns(time, "at"),  # when the state was last changed or published
        columns(text, "story"),  # the `Handover` as JSON
    )
    index("handovers", "handovers_state", "state", "at")
    table(
        "move_plans",
        columns(text, "id"),
        columns(time, "began", "ended"),  # ended: 0 while the plan goes on
        columns(number, "version"),
        columns(text, "record", "memo"),  # the PlanStands; what the kind of the plan has noted
    )
    index("move_plans", "move_plans_ended", "ended")
    table("move_plan_hosts", columns(text, "plan", "root"), keys=2)  # the hosts that plans empty
    index("move_plan_hosts", "move_plan_hosts_root", "root")
    table(
        "planned_moves",
        columns(text, "move", "build", "plan", "root", "kind"),
        columns(time, "at", "ended"),
        columns(number, "changed", "memory_mb"),  # changed: the version of the plan
        columns(text, "result", "code", "host", "request"),  # request: the MoveRequested
    )
    index("planned_moves", "planned_moves_plan", "plan", "changed")
    index("planned_moves", "planned_moves_build", "build")
    index("planned_moves", "planned_moves_ended", "ended")

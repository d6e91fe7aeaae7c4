"""The first migration: decisions, usual shapes, hosts, leaders and the audit trail."""

import sqlalchemy as sa

from bus.sql.schema import columns, index, table

revision = "0001_first"
down_revision = None


def _acts() -> None:
    """Create the table of the audit trail."""
    table(
        "acts",
        columns(sa.Text, "id"),
        columns(sa.Double, "at"),
        columns(sa.Boolean, "program"),  # true if a client or service requested the act
        columns(sa.Integer, "finality"),  # never replaced by a lower value
        columns(sa.Text, "operator", "role", "operator_project", "interface", "act", "target", "target_name"),
        columns(sa.Text, "project", "request", "outcome"),
        columns(sa.Text, "record"),  # the ActRecord
    )
    index("acts", "acts_at", "at", "id")
    index("acts", "acts_program", "program", "at")
    index("acts", "acts_operator", "operator", "at")
    index("acts", "acts_target", "target", "at")


def upgrade() -> None:
    text = sa.Text
    _acts()
    table("decided_builds", columns(text, "build", "decision"))
    index("decided_builds", "decided_builds_decision", "decision")
    table(
        "decisions",
        columns(text, "id"),  # id of the first build that ended with this decision
        columns(text, "request", "project", "reason", "decision"),
        columns(text, "message"),  # the BuildRequested; for a move, the request for a destination or empty
        columns(sa.Double, "at"),
        columns(text, "parts", server_default=""),  # for a refused request of a feature, as JSON
        columns(text, "placed", server_default=""),  # the BuildPlaced, if another system builds the instance
        columns(sa.Boolean, "external", server_default=sa.false()),  # true: another system builds it
    )
    index("decisions", "decisions_at", "at")
    index("decisions", "decisions_request", "request")
    # Usual shapes of requests. weight: of the requests with this shape; later requests weigh more
    # (core/demand.py).
    table("demand", columns(text, "shape"), columns(sa.Double, "weight"))
    # Hosts that are down or closed by their agents; a host that is up has no row.
    table("host_health", columns(text, "cell", "root", "health"), keys=2)
    table("leaders", columns(text, "work", "scheduler"), columns(sa.Double, "until"))

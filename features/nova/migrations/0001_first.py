"""The first schema of shadow mode: requests to Nova's scheduler, berth's decisions, and Nova's results."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001_first"
down_revision = None


def _table(name: str, **columns: Any) -> None:
    """Create a table with the primary key `id` and indexes of `at` and `instance`."""
    listed = [sa.Column(column, type_, nullable=False) for column, type_ in columns.items()]
    op.create_table(name, *listed, sa.PrimaryKeyConstraint("id"))
    op.create_index(f"{name}_at", name, ["at", "id"])
    op.create_index(f"{name}_instance", name, ["instance"])


def upgrade() -> None:
    text = sa.Text
    _table(
        "observed_requests",
        id=text,  # of the notification; of a request without one: of Nova's request and the instance
        request=text,  # id of the request to Nova's API
        instance=text,
        at=sa.Double,
        operation=text,
        project=text,
        flavor=text,
        instances=sa.Integer,
        hosts=text,  # JSON list
        reason=text,
        code=text,
        undecided=text,
        decision=text,  # JSON
        seconds=sa.Double,
        lag=sa.Double,
        searched=sa.Integer,  # 0: decided from an error notification
        free=text,  # JSON: free memory of the hosts before the decision
    )
    _table(
        "nova_outcomes",
        id=text,  # of the notification
        request=text,
        instance=text,
        at=sa.Double,
        event=text,
        operation=text,
        host=text,
        cause=text,
        reason=text,
    )
    op.create_table(
        "missing_periods",  # periods with lost notifications
        sa.Column("since", sa.Double, nullable=False),
        sa.Column("until", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("since", "until"),
    )
    op.create_index("nova_outcomes_request", "nova_outcomes", ["request"])
    op.create_index("observed_requests_request", "observed_requests", ["request"])

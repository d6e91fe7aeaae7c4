"""The first schema of shadow mode: requests to Nova's scheduler, berth's decisions, and Nova's results."""

from typing import Any

import sqlalchemy as sa

from bus.sql.schema import columns, index, table

revision = "0001_first"
down_revision = None


def _table(name: str, **types: Any) -> None:
    """Create a table with the primary key `id` and indexes of `at` and `instance`."""
    table(name, *(columns(type_, column) for column, type_ in types.items()))
    index(name, f"{name}_at", "at", "id")
    index(name, f"{name}_instance", "instance")


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
    table("missing_periods", columns(sa.Double, "since", "until"), keys=2)  # periods with lost notifications
    index("nova_outcomes", "nova_outcomes_request", "request")
    index("observed_requests", "observed_requests_request", "request")

"""The number of SQL statements per claim: each is a round trip that a boot waits for."""

from collections.abc import Sequence
from typing import Any

import pytest

from bus.claims import Claimed
from bus.sql.transaction import PostgresTransaction
from tests.support.placement_builders import a_claim, a_placement, a_report, an_order, on_hosts
from tests.support.placement_calls import claim, report

pytestmark = pytest.mark.services


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    statements: list[str] = []
    fetch = PostgresTransaction.fetch

    async def heard(self: PostgresTransaction, sql: str, values: Sequence[Any]) -> Sequence[Any]:
        statements.append(sql)
        return await fetch(self, sql, values)

    monkeypatch.setattr(PostgresTransaction, "fetch", heard)
    return statements


async def test_consumers_that_are_new_take_three_statements_however_many(
    placement_url: str, said: list[str]
) -> None:
    """One makes and locks them and what they want, one reads it, one writes."""
    async with a_placement(placement_url) as placement:
        await report(placement, a_report(1), a_report(2))
        await claim(placement, an_order(a_claim(9, on_hosts(1, VCPU=1))))  # owners have numbers now
        said.clear()
        results = await claim(placement, *(an_order(a_claim(n, on_hosts(n, VCPU=1))) for n in (1, 2)))
        assert all(isinstance(result, Claimed) for result in results)
        assert len(said) == 3

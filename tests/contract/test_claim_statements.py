"""The number of SQL statements per claim: each is a round trip that a boot waits for."""

from collections.abc import Sequence
from typing import Any

import pytest

from bus.claims import Claimed, Held, NoSuchProvider, Refused, Retired
from bus.sql.transaction import PostgresTransaction
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_release, a_report, an_order, on_hosts
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


async def test_claims_that_are_not_ordinary_give_the_same_result_with_more_statements(
    placement_url: str, said: list[str]
) -> None:
    async with a_placement(placement_url) as placement:
        await report(placement, a_report(1))
        await claim(placement, an_order(a_claim(1, on_hosts(1, VCPU=1))))
        await placement.claims.release_many([a_release(3, None, "deleted")])
        said.clear()
        there, gone, retired, new = await claim(
            placement,
            an_order(a_claim(1, on_hosts(1, VCPU=1))),
            an_order(a_claim(2, on_hosts(7, VCPU=1))),
            an_order(a_claim(3, on_hosts(1, VCPU=1))),
            an_order(a_claim(4, on_hosts(1, VCPU=1))),
        )
        assert there == Held(generation=1, allocations=on_hosts(1, VCPU=1), roots=(uid(1, "a"),))
        assert gone == Refused(refusals=(NoSuchProvider(provider=uid(7, "a")),))
        assert retired == Retired(why="deleted")
        assert isinstance(new, Claimed)
        assert len(said) > 3


async def test_a_claim_of_new_consumers_on_a_deleted_provider_is_refused(
    placement_url: str, said: list[str]
) -> None:
    async with a_placement(placement_url) as placement:
        await report(placement, a_report(1))
        new, gone = await claim(
            placement, an_order(a_claim(1, on_hosts(1, VCPU=1))), an_order(a_claim(2, on_hosts(7, VCPU=1)))
        )
        assert isinstance(new, Claimed)
        assert gone == Refused(refusals=(NoSuchProvider(provider=uid(7, "a")),))

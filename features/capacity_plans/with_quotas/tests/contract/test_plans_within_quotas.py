"""The page about capacity plans within the quota of a project."""

import pytest

from features.capacity_plans.tests.support.plans import load_joins, nothing_known
from features.capacity_plans.with_quotas import added_to_plans
from features.quotas.messages import QUOTAS, Quota, QuotasFound
from tests.support.visited_room import a_visited_room


async def test_a_plan_names_the_quota_that_binds(monkeypatch: pytest.MonkeyPatch) -> None:
    load_joins(monkeypatch, added_to_plans)
    found = QuotasFound(quotas=(Quota(project="p", effective={"VCPU": 4}, used={"VCPU": 4}),))
    async with a_visited_room(sent={**nothing_known(), QUOTAS.name: found}) as room:
        page = await room.page("/what-if/capacity?wait=1&mix=VCPU:1&add=1xVCPU:8&project=p")
    assert "VCPU:1: 8 fit on the hosts; the quota permits 0: VCPU, 4 of 4 used." in page

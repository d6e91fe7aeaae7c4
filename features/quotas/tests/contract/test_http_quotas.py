"""Quotas in the Placement API: limits, usage, and claims beyond a limit."""

import pytest

from tests.support.http_placement import HttpPlacement, claim_in_json, error_of
from tests.support.ids import uid

A, B = uid(1, "a"), uid(2, "a")


async def test_limits_are_set_listed_and_deleted(near: HttpPlacement) -> None:
    await near.made("/berth/quotas/default", {"limits": {"instances": 9}})
    await near.made("/berth/quotas/p1", {"limits": {"VCPU": 4}})
    await near.provider(A, VCPU=8)
    await near.made(f"/allocations/{B}", claim_in_json((A, {"VCPU": 3})))
    shown = await near.made("/berth/quotas/p1", method="GET")
    assert shown == {
        "project": "p1",
        "limits": {"VCPU": 4},
        "effective": {"VCPU": 4, "instances": 9},
        "used": {"VCPU": 3, "instances": 1},
    }
    listed = await near.made("/berth/quotas", method="GET")
    assert [quota["project"] for quota in listed["quotas"]] == ["default", "p1"]
    await near.made("/berth/quotas/p1", method="DELETE")
    assert (await near.made("/berth/quotas/p1", method="GET"))["effective"] == {"instances": 9}


@pytest.mark.parametrize(
    ("limits", "says"), [({"COW": 1}, "there is no resource COW"), ({}, "limits"), ({"VCPU": -2}, ">= -1")]
)
async def test_invalid_limits_are_refused(near: HttpPlacement, limits: dict[str, int], says: str) -> None:
    status, _, detail = error_of(await near("PUT", "/berth/quotas/p1", {"limits": limits}))
    assert status == 400
    assert says in detail

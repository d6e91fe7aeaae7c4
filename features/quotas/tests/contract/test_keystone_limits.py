"""Keystone's unified limits as the quotas of projects."""

from typing import Any

import httpx
import pytest

from features.quotas.keystone_limits import KeystoneLimits, ProjectLimit, RegisteredLimit, quotas_of
from features.quotas.messages import DEFAULT, INSTANCES, QuotaSourceIsKeystone, SetQuota
from features.quotas.operations import QuotaOperations
from features.quotas.tests.support.limits import edit, quota
from ironic_sync.extension import Access
from placement_worker.testing import Placement

ACCESS = Access(
    url="http://127.0.0.1:1", auth_type="http_basic", auth={"auth_url": "http://k", "username": "u"}
)


def registered(name: str, limit: int, region: str | None = None) -> RegisteredLimit:
    return RegisteredLimit(resource_name=name, default_limit=limit, region_id=region)


def of_project(project: str | None, name: str, limit: int) -> ProjectLimit:
    return ProjectLimit(project_id=project, resource_name=name, resource_limit=limit)


def test_names_of_nova_are_translated_and_others_left_out() -> None:
    listed = [
        registered("servers", 10),
        registered("class:CUSTOM_GOLD", 2),
        registered("server_key_pairs", 5),
    ]
    assert quotas_of(listed, (), "") == {DEFAULT: {INSTANCES: 10, "CUSTOM_GOLD": 2}}


def test_a_missing_limit_is_no_limit_of_zero() -> None:
    assert quotas_of((), (), "") == {}


def test_a_limit_of_this_region_precedes_one_of_all_regions() -> None:
    listed = [registered("servers", 3, "r1"), registered("servers", 10), registered("servers", 7, "r2")]
    assert quotas_of(listed, (), "r1") == {DEFAULT: {INSTANCES: 3}}


def test_limits_of_domains_are_left_out() -> None:
    assert quotas_of((), [of_project(None, "servers", 3), of_project("p1", "servers", -1)], "") == {
        "p1": {INSTANCES: -1}
    }


class UnifiedLimits:
    """A Keystone that answers with scripted limits."""

    def __init__(self) -> None:
        self.registered: list[dict[str, Any]] = []
        self.limits: list[dict[str, Any]] = []
        self.status = 200

    def __call__(self, request: httpx.Request) -> httpx.Response:
        what = "registered_limits" if request.url.path.endswith("registered_limits") else "limits"
        found = self.registered if what == "registered_limits" else self.limits
        return httpx.Response(self.status, json={what: found, "links": {}})


async def copied(placement: Placement, keystone: UnifiedLimits) -> bool:
    placement.of(QuotaOperations).source = "keystone"
    limits = KeystoneLimits(ACCESS, placement.of(QuotaOperations), placement.clock)
    async with httpx.AsyncClient(transport=httpx.MockTransport(keystone)) as client:
        return await limits.copy(client)


async def test_the_quotas_become_those_of_keystone(placement: Placement) -> None:
    keystone = UnifiedLimits()
    keystone.registered = [{"resource_name": "servers", "default_limit": 10, "service_id": "s"}]
    keystone.limits = [{"resource_name": "class:VCPU", "resource_limit": 4, "project_id": "p1"}]
    assert await copied(placement, keystone)
    assert (await quota(placement)).effective == {INSTANCES: 10, "VCPU": 4}
    assert not await copied(placement, keystone)
    keystone.limits = []
    assert await copied(placement, keystone)
    assert (await quota(placement)).effective == {INSTANCES: 10}


async def test_the_last_limits_apply_while_keystone_refuses(placement: Placement) -> None:
    keystone = UnifiedLimits()
    keystone.registered = [{"resource_name": "servers", "default_limit": 10}]
    await copied(placement, keystone)
    keystone.status = 503
    with pytest.raises(httpx.HTTPStatusError):
        await copied(placement, keystone)
    assert (await quota(placement)).effective == {INSTANCES: 10}


async def test_quotas_of_keystone_cannot_be_set_here(placement: Placement) -> None:
    placement.of(QuotaOperations).source = "keystone"
    assert await edit(placement, SetQuota(limits={"VCPU": 1})) == QuotaSourceIsKeystone()

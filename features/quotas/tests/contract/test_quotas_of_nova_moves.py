"""Quotas of instances that Nova moves over HTTP, with microversions that have no consumer types."""

from typing import Any

import httpx
import pytest

from bus.claims import Claimed, ClaimRequested, ConsumerClaim
from bus.vocabulary import Allocations
from features.quotas.tests.support.limits import limit
from placement_worker.testing import Placement
from tests.support.http_placement import HttpPlacement, error_of
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_report, on_hosts

SOURCE, TARGET = uid(1, "a"), uid(2, "a")
INSTANCE, MIGRATION, OTHER = uid(1, "b"), uid(1, "c"), uid(2, "b")


@pytest.fixture
def url() -> str:
    """Return one type of database: test_quotas.py runs the statements on both."""
    return "sqlite+aiosqlite://"


class Nova:
    """Nova's requests about allocations; the project is p1, with a limit of 4 VCPU."""

    def __init__(self, api: HttpPlacement) -> None:
        self.api = api

    async def start(self, vcpus: int = 4) -> None:
        for host in (SOURCE, TARGET):
            await self.api.provider(host, VCPU=16)
        await self.ok(self.claim(INSTANCE, {SOURCE: vcpus}))
        await self.limit(4)

    async def limit(self, vcpus: int) -> None:
        await self.api.made("/berth/quotas/p1", {"limits": {"VCPU": vcpus}})

    async def used(self) -> dict[str, int]:
        used: dict[str, int] = (await self.api.made("/berth/quotas/p1", method="GET"))["used"]
        return used

    async def body(self, consumer: str, shares: dict[str, int]) -> dict[str, Any]:
        held = await self.api.made(f"/allocations/{consumer}", method="GET", minor=28)
        return {
            "allocations": {host: {"resources": {"VCPU": amount}} for host, amount in shares.items()},
            "project_id": "p1", "user_id": "u1", "consumer_generation": held.get("consumer_generation"),
        }  # fmt: skip

    async def claim(self, consumer: str, shares: dict[str, int]) -> httpx.Response:
        body = await self.body(consumer, shares)
        return await self.api("PUT", f"/allocations/{consumer}", body, minor=28)

    async def swap(self, giver: str, receiver: str, shares: dict[str, int]) -> httpx.Response:
        """Give the allocations of a consumer to another one, which loses its former allocations."""
        body = {receiver: await self.body(receiver, shares), giver: await self.body(giver, {})}
        return await self.api("POST", "/allocations", body, minor=28)

    async def ok(self, request: Any) -> None:
        answer = await request
        assert answer.status_code == 204, answer.text


@pytest.fixture
def nova(api: HttpPlacement) -> Nova:
    return Nova(api)


async def test_a_migration_at_the_limit_succeeds_and_counts_once_at_each_step(nova: Nova) -> None:
    await nova.start()
    await nova.ok(nova.swap(INSTANCE, MIGRATION, {SOURCE: 4}))
    assert await nova.used() == {"VCPU": 4, "instances": 1}
    await nova.ok(nova.claim(INSTANCE, {TARGET: 4}))
    assert await nova.used() == {"VCPU": 4, "instances": 1}
    await nova.ok(nova.claim(MIGRATION, {}))
    assert await nova.used() == {"VCPU": 4, "instances": 1}


async def test_no_other_claim_gets_the_quota_of_an_instance_that_is_between_its_hosts(nova: Nova) -> None:
    await nova.start()
    await nova.ok(nova.swap(INSTANCE, MIGRATION, {SOURCE: 4}))
    status, _, detail = error_of(await nova.claim(OTHER, {TARGET: 1}))
    assert status == 409 and "VCPU limited to 4, 4 used, 1 more asked" in detail


async def test_a_resize_is_charged_the_difference(nova: Nova) -> None:
    await nova.start()
    await nova.limit(6)
    await nova.ok(nova.swap(INSTANCE, MIGRATION, {SOURCE: 4}))
    status, _, detail = error_of(await nova.claim(INSTANCE, {TARGET: 7}))
    assert status == 409 and "VCPU limited to 6, 4 used, 3 more asked" in detail
    await nova.ok(nova.claim(INSTANCE, {TARGET: 6}))
    assert await nova.used() == {"VCPU": 6, "instances": 1}


async def test_the_quota_for_a_revert_stays_reserved_until_a_smaller_resize_is_confirmed(nova: Nova) -> None:
    await nova.start()
    await nova.ok(nova.swap(INSTANCE, MIGRATION, {SOURCE: 4}))
    await nova.ok(nova.claim(INSTANCE, {TARGET: 1}))
    assert await nova.used() == {"VCPU": 4, "instances": 1}
    await nova.limit(0)
    await nova.ok(nova.swap(MIGRATION, INSTANCE, {SOURCE: 4}))
    assert await nova.used() == {"VCPU": 4, "instances": 1}
    await nova.ok(nova.swap(INSTANCE, MIGRATION, {SOURCE: 4}))
    await nova.ok(nova.claim(INSTANCE, {TARGET: 1}))
    await nova.ok(nova.claim(MIGRATION, {}))
    assert await nova.used() == {"VCPU": 1, "instances": 1}


async def test_an_evacuation_at_the_limit_succeeds_and_counts_once(nova: Nova) -> None:
    await nova.start()
    await nova.ok(nova.claim(INSTANCE, {SOURCE: 4, TARGET: 4}))
    assert await nova.used() == {"VCPU": 4, "instances": 1}
    assert (await nova.claim(OTHER, {TARGET: 1})).status_code == 409
    await nova.ok(nova.claim(INSTANCE, {TARGET: 4}))
    assert await nova.used() == {"VCPU": 4, "instances": 1}


async def test_a_limit_that_is_set_during_a_move_counts_the_instance_once(nova: Nova) -> None:
    for host in (SOURCE, TARGET):
        await nova.api.provider(host, VCPU=16)
    await nova.ok(nova.claim(INSTANCE, {SOURCE: 4}))
    await nova.ok(nova.swap(INSTANCE, MIGRATION, {SOURCE: 4}))
    await nova.limit(4)
    await nova.ok(nova.claim(INSTANCE, {TARGET: 4}))
    assert await nova.used() == {"VCPU": 4, "instances": 1}


@pytest.fixture
async def limited(placement: Placement) -> Placement:
    """Limit project p1 to 4 VCPU, and place its instances 1 and 2, which use 2 each."""
    await placement.reports.report_many([a_report(number) for number in (1, 2)])
    await limit(placement, VCPU=4)
    assert await placed(placement, wants(1, 1, VCPU=2), wants(2, 1, VCPU=2)) == [True, True]
    return placement


async def placed(placement: Placement, *orders: ClaimRequested) -> list[bool]:
    """Execute the requests in one transaction; return which succeeded."""
    answers = await placement.claims.claim_many(orders)
    return [all(isinstance(result, Claimed) for result in answer.results) for answer in answers]


def of_nova(consumer: int, allocations: Allocations, generation: int | None = None) -> ConsumerClaim:
    return a_claim(consumer, allocations, generation=generation, type=None, client=True)


def wants(consumer: int, host: int, **resources: int) -> ClaimRequested:
    return ClaimRequested(claims=(of_nova(consumer, on_hosts(host, **resources)),))


@pytest.mark.parametrize("releases_first", [False, True])
async def test_a_claim_gets_the_quota_that_another_claim_of_its_request_releases(
    limited: Placement, releases_first: bool
) -> None:
    both = of_nova(1, {}, 1), of_nova(3, on_hosts(2, VCPU=2))
    order = ClaimRequested(claims=both if releases_first else both[::-1])
    assert await placed(limited, order, wants(4, 2)) == [True, False]

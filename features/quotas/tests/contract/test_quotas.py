"""Quotas on both databases: set, found, and checked in the transaction of a claim."""

import asyncio

import pytest

from berth.kit import Settings
from berth.kit.testing import open_placement
from bus.claims import Claimed, ClaimRequested, Refused, ReleaseRequested, RuleRefused
from bus.vocabulary import Missing
from features.quotas.messages import DEFAULT, INSTANCES, OverQuota, Quota, QuotaEdited, SetQuota
from features.quotas.tests.support.limits import edit, limit, quota
from placement_worker.testing import Placement
from tests.support.placement_builders import a_claim, a_release, a_report, on_hosts
from tests.support.placement_calls import must_take, take


@pytest.fixture(autouse=True)
async def hosts(placement: Placement) -> None:
    await placement.reports.report_many([a_report(number) for number in (1, 2, 3)])


async def release(placement: Placement, *orders: ReleaseRequested) -> None:
    await placement.claims.release_many(orders)


# Set, unset, found


async def test_a_project_has_its_own_limits_and_else_the_default(placement: Placement) -> None:
    await limit(placement, DEFAULT, VCPU=4, instances=10)
    await limit(placement, VCPU=6)
    assert await quota(placement) == Quota(
        project="p1", limits={"VCPU": 6}, effective={"VCPU": 6, INSTANCES: 10}
    )
    assert (await quota(placement, "p2")).effective == {"VCPU": 4, INSTANCES: 10}


async def test_a_repeated_edit_changes_nothing(placement: Placement) -> None:
    order = SetQuota(project="p1", limits={"VCPU": 4})
    [first, second] = [await edit(placement, order), await edit(placement, order)]
    assert isinstance(first, QuotaEdited) and isinstance(second, QuotaEdited)
    assert (first.changed, second.changed) == (True, False)


async def test_a_limit_of_an_unknown_resource_is_refused(placement: Placement) -> None:
    result = await edit(placement, SetQuota(limits={"VCPUS": 4, "VCPU": 2}))
    assert result == Missing(what="resource", names=("VCPUS",))
    assert (await quota(placement, DEFAULT)).limits == {}


async def test_usage_of_a_project_without_holders_of_moves(placement: Placement) -> None:
    await take(placement, a_claim(1, on_hosts(1, VCPU=3)), a_claim(2, on_hosts(2, VCPU=2)))
    await take(placement, a_claim(3, on_hosts(3, VCPU=1), project="p2"))
    await release(placement, a_release(2, 1, "deleted", keep=9))
    assert (await quota(placement)).used == {"VCPU": 3, INSTANCES: 1}


# Checked in claims


def refusal(over: OverQuota) -> RuleRefused:
    return RuleRefused(rule="quotas", code="quota", why=str(over), wakes_on=f"quota:{over.project}")


async def test_a_claim_up_to_the_limit_succeeds_and_one_beyond_is_refused(placement: Placement) -> None:
    await limit(placement, VCPU=4)
    [within] = await take(placement, a_claim(1, on_hosts(1, VCPU=4)))
    [beyond] = await take(placement, a_claim(2, on_hosts(2, VCPU=1)))
    assert isinstance(within, Claimed)
    over = OverQuota(project="p1", resource="VCPU", limit=4, used=4, asked=1)
    assert beyond == Refused(refusals=(refusal(over),))
    assert (await quota(placement)).used == {"VCPU": 4, INSTANCES: 1}


async def test_claims_of_one_request_count_together(placement: Placement) -> None:
    await limit(placement, instances=2)
    claims = [a_claim(number, on_hosts(number)) for number in (1, 2, 3)]
    results = await take(placement, *claims)
    assert not any(isinstance(result, Claimed) for result in results)
    results = await take(placement, *claims[:2])
    assert all(isinstance(result, Claimed) for result in results)


async def test_a_refused_request_leaves_the_budget_to_the_next_of_its_batch(placement: Placement) -> None:
    await limit(placement, VCPU=4)
    both = [
        ClaimRequested(claims=(a_claim(1, on_hosts(1, VCPU=3)), a_claim(2, on_hosts(2, VCPU=2)))),
        ClaimRequested(claims=(a_claim(3, on_hosts(3, VCPU=4)),)),
    ]
    first, second = await placement.claims.claim_many(both)
    assert not any(isinstance(result, Claimed) for result in first.results)
    assert isinstance(second.results[0], Claimed)


async def test_a_limit_below_the_usage_refuses_only_growth(placement: Placement) -> None:
    await take(placement, a_claim(1, on_hosts(1, VCPU=4)))
    await limit(placement, VCPU=2)
    await must_take(placement, a_claim(1, on_hosts(2, VCPU=4), generation=1, keep=8, begins=9))
    assert (await quota(placement)).used == {"VCPU": 4, INSTANCES: 1}
    [grown] = await take(placement, a_claim(1, on_hosts(2, VCPU=5), generation=2))
    assert isinstance(grown, Refused)
    await must_take(placement, a_claim(1, on_hosts(2, VCPU=1), generation=2))


async def test_a_reverted_move_is_never_refused(placement: Placement) -> None:
    await take(placement, a_claim(1, on_hosts(1, VCPU=4)))
    await take(placement, a_claim(1, on_hosts(2, VCPU=2), generation=1, keep=8, begins=9))
    await limit(placement, VCPU=0)
    await must_take(placement, a_claim(1, on_hosts(1, VCPU=4), generation=2, take_over=8))


async def test_an_instance_that_changes_its_project_counts_in_the_new_one(placement: Placement) -> None:
    await take(placement, a_claim(1, on_hosts(1, VCPU=4)))
    await limit(placement, "p2", VCPU=3)
    [refused] = await take(placement, a_claim(1, on_hosts(1, VCPU=4), generation=1, project="p2"))
    assert isinstance(refused, Refused)


async def test_another_process_judges_by_a_limit_from_its_first_commit_on(placement: Placement) -> None:
    other = open_placement(Settings(), placement.database, placement.clock)
    await other.start()
    await limit(placement, VCPU=1)
    [beyond] = await take(other, a_claim(1, on_hosts(1, VCPU=2)))
    assert isinstance(beyond, Refused)
    await limit(placement, VCPU=2)
    await must_take(other, a_claim(1, on_hosts(1, VCPU=2)))
    await placement.memory.fresh()


async def test_concurrent_claims_of_two_processes_never_exceed_a_limit(placement: Placement) -> None:
    other = open_placement(Settings(), placement.database, placement.clock)
    await other.start()
    await limit(placement, VCPU=5)
    results = await asyncio.gather(
        *(
            take(process, a_claim(number, on_hosts(number % 3 + 1)))
            for number in range(1, 21)
            for process in ([placement, other][number % 2],)
        )
    )
    assert sum(isinstance(result, Claimed) for [result] in results) == 5
    assert (await quota(placement)).used == {"VCPU": 5, INSTANCES: 5}
    await placement.memory.fresh()

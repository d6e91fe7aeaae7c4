"""Limits of the number of members of a server group."""

import pytest

from bus.claims import Refused, RuleRefused
from features.groups.messages import GroupEditRequested, MakeGroup
from features.groups.store import ServerGroups
from features.groups.tests.support.group_parts import joining
from features.quotas.messages import GROUP_MEMBERS, OverQuota
from features.quotas.tests.support.limits import limit, quota
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_release, a_report, on_hosts
from tests.support.placement_calls import must_take, take


@pytest.fixture(autouse=True)
async def hosts(placement: Placement) -> None:
    await placement.reports.report_many([a_report(number) for number in (1, 2, 3)])


def refusal(over: OverQuota) -> RuleRefused:
    return RuleRefused(rule="quotas", code="quota", why=str(over), wakes_on="quota:p1")


async def test_members_of_a_server_group_are_limited(placement: Placement) -> None:
    group = uid(1, "9")
    make = MakeGroup(group=group, name="web", policy="soft-affinity", project="p1")
    await placement.of(ServerGroups).edit(GroupEditRequested(edit=make))
    await limit(placement, **{GROUP_MEMBERS: 2})
    for number in (1, 2):
        await must_take(placement, a_claim(number, on_hosts(1), parts=joining(group)))
    [third] = await take(placement, a_claim(3, on_hosts(1), parts=joining(group)))
    over = OverQuota(project="p1", resource=GROUP_MEMBERS, limit=2, used=2, asked=1)
    assert third == Refused(refusals=(refusal(over),))
    await must_take(placement, a_claim(3, on_hosts(1)))


async def test_the_used_members_of_server_groups_are_those_of_the_largest_group(placement: Placement) -> None:
    for number, name in ((1, "web"), (2, "db")):
        make = MakeGroup(group=uid(number, "9"), name=name, policy="anti-affinity", project="p1")
        await placement.of(ServerGroups).edit(GroupEditRequested(edit=make))
    for number, host, group in ((1, 1, 1), (2, 2, 1), (3, 3, 2)):
        await take(placement, a_claim(number, on_hosts(host), parts=joining(uid(group, "9"))))
    assert (await quota(placement)).used[GROUP_MEMBERS] == 2
    await take(placement, a_claim(3, on_hosts(2), generation=1, keep=8, begins=9))
    await placement.claims.release_many([a_release(1, 1, "deleted", keep=7)])
    assert (await quota(placement)).used[GROUP_MEMBERS] == 1

"""Failover headroom for members of server groups, on both databases."""

from collections.abc import Sequence
from typing import Any

from bus.claims import Refused
from features.groups.messages import GroupEditRequested, MakeGroup
from features.groups.store import ServerGroups
from features.groups.tests.support.group_parts import joining
from features.headroom.tests.support.kept_headroom import adjusted, keep, report_three_hosts
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_release, an_order, on_hosts
from tests.support.placement_calls import must_take


async def join(placement: Placement, consumers: Sequence[tuple[int, int]], **fields: Any) -> None:
    """Place instances (consumer, host) of four processors in one server group."""
    made = MakeGroup(group=uid(1, "b"), name="web", project="p1", **fields)
    await placement.of(ServerGroups).edit(GroupEditRequested(edit=made))
    for consumer, host in consumers:
        claim = a_claim(consumer, on_hosts(host, VCPU=4), parts=joining(made.group))
        await must_take(placement, claim)


async def test_only_a_single_member_of_an_affinity_group_can_be_evacuated(placement: Placement) -> None:
    await report_three_hosts(placement)
    await join(placement, [(2, 1)], policy="affinity")
    await keep(placement, "host")
    assert (await adjusted(placement)).kept
    await join(placement, [(3, 1)], policy="affinity")
    found = await adjusted(placement)
    why = "server groups with policy affinity and several members cannot leave a lost host"
    assert not found.kept and found.lacking == (f"2 instances: {why}",)
    # an evacuation's claim is refused, because the other member is still on the lost host
    move = a_claim(2, on_hosts(2, VCPU=4), generation=1, keep=30, begins=31)
    [answer] = await placement.claims.claim_many([an_order(move)])
    assert isinstance(answer.results[0], Refused)
    await placement.claims.release_many([a_release(3, "any")])
    assert (await adjusted(placement)).kept
    await must_take(placement, move)

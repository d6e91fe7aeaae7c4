"""Instances of server groups are no victims of preemption."""

from bus.claims import Refused
from bus.parts import ClaimParts
from bus.resources import FindAllocations
from features.groups.messages import GroupEditRequested, MakeGroup
from features.groups.store import ServerGroups
from features.groups.tests.support.group_parts import joining
from features.preemption.tests.support.preempting_claims import HIGH, LOW, LOWER, a_victim, take, taking
from features.preemption.tests.support.preempting_claims import full_host as full_host
from placement_worker.testing import Placement
from tests.support.ids import uid


async def test_members_of_server_groups_are_protected(placement: Placement) -> None:
    group = MakeGroup(group=uid(1, "b"), name="g", project="p1", policy="anti-affinity")
    await placement.of(ServerGroups).edit(GroupEditRequested(edit=group))
    await take(placement, LOW, 6, generation=1, parts=joining(group.group))
    refused = await take(placement, HIGH, 4, parts=ClaimParts(taking(a_victim(generation=2))))
    assert isinstance(refused, Refused) and "server group" in str(refused.refusals[0])
    found = await placement.lookups.allocations(FindAllocations(consumers=(uid(LOW), uid(LOWER))))
    assert {each.id: each.protected for each in found.consumers} == {uid(LOW): True, uid(LOWER): False}

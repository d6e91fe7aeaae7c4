"""Gangs, topologies and server groups preempt: all members are placed, or no instance is deleted."""

import pytest

from bus.messages import BuildPlaced, BuildUnplaceable
from features.groups.constraints import DomainConstraints
from features.groups.messages import GroupEditRequested, MakeGroup
from features.groups.store import ServerGroups
from features.groups.tests.support.group_parts import in_group
from features.preemption.messages import PriorityClass
from features.tests.support.full_cloud import RACKS, FullCloud, a_gang
from features.tests.support.full_cloud import cloud as cloud
from tests.support.ids import uid
from tests.support.schedulers import messages_of


@pytest.fixture
def url() -> str:
    """Return one type of database: the tests of each feature run the statements on both."""
    return "sqlite+aiosqlite://"


def named(*numbers: int) -> set[str]:
    return {uid(number) for number in numbers}


PACKED = DomainConstraints(pack="rack")


async def test_roles_share_the_victims_of_their_host(cloud: FullCloud) -> None:
    await cloud.fill({1: [(8, 1)], 2: [(8, 2)], 3: [(8, 2)], 4: [(8, 2)]})
    placed = await cloud.place(a_gang((1, 5), (3, 1)))
    assert placed == {"host-1": named(11)}


async def test_no_instance_is_deleted_unless_the_whole_gang_fits(cloud: FullCloud) -> None:
    await cloud.fill({1: [(8, 1)], 2: [(8, 7)], 3: [(8, 1)], 4: [(8, 7)]})
    assert await cloud.place(a_gang((1, 8), (1, 1), topology=PACKED)) == {}
    assert await cloud.held() == named(11, 21, 31, 41)


async def test_instances_are_spread_over_racks(cloud: FullCloud) -> None:
    await cloud.fill({1: [(8, 1)], 2: [(8, 1)], 3: [(8, 2)], 4: [(8, 3)]})
    placed = await cloud.place(a_gang((2, 3), topology=DomainConstraints(spread="rack")))
    assert placed == {"host-1": named(11), "host-3": named(31)}


async def test_members_of_an_anti_affinity_group_preempt_on_different_hosts(cloud: FullCloud) -> None:
    await cloud.fill({host: [(8, host)] for host in RACKS})
    group = MakeGroup(group=uid(1, "9"), name="g", project="p1", policy="anti-affinity")
    await cloud.placement.of(ServerGroups).edit(GroupEditRequested(edit=group))
    placed = await cloud.place(a_gang((2, 2), parts=in_group(group.group)))
    assert placed == {"host-1": named(11), "host-2": named(21)}
    assert await cloud.held() == named(31, 41)


async def test_the_budget_counts_the_victims_of_all_members(cloud: FullCloud) -> None:
    await cloud.fill({host: [(8, 1)] for host in RACKS})
    cloud.classes.by_value = {7: PriorityClass(name="high", value=7, preempts=True, budget=1)}
    gang = a_gang((2, 8), topology=PACKED)
    [message] = await messages_of(cloud.scheduler, gang)
    assert isinstance(message, BuildUnplaceable) and "at most 1" in message.reason
    assert len(await cloud.held()) == 4


async def test_members_of_a_gang_with_victims_get_alternates_that_keep_its_topology(cloud: FullCloud) -> None:
    await cloud.fill({1: [(8, 1)], 2: [(2, 7)], 3: [(6, 7)], 4: [(7, 7)]})
    gang = a_gang((1, 8), (1, 1), topology=DomainConstraints(spread="rack"), alternates=2)
    found: dict[str, set[str]] = {}
    for message in await messages_of(cloud.scheduler, gang):
        assert isinstance(message, BuildPlaced)
        found[message.chosen.host] = {spare.host for spare in message.alternates}
    small = min(found.keys() - {"host-1"})
    assert found == {"host-1": set(), small: {"host-3", "host-4"} - {small}}
    assert await cloud.held() == named(21, 31, 41)

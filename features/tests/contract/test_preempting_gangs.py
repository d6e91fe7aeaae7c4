"""Gangs, topologies and server groups preempt: all members are placed, or no instance is deleted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from berth.kit.testing import placement_breaches
from bus.domains import LabelEditRequested
from bus.messages import BuildPlaced, BuildRequested, BuildUnplaceable
from bus.parts import PlacedParts
from bus.queries import FindInstances, Instance, InstancesFound
from bus.requests import Flavor
from bus.resources import FindAllocations
from features.groups.constraints import DomainConstraints
from features.groups.messages import GroupEditRequested, MakeGroup
from features.groups.store import ServerGroups
from features.groups.tests.support.group_parts import in_group
from features.preemption import victim_search
from features.preemption.messages import PriorityClass, victims_of_placed
from features.preemption.priorities import PriorityClasses
from features.preemption.victim_search import VictimSearch
from features.preemption.with_groups.scheduler import limits_of
from features.topology.messages import GangRole
from features.waiting.messages import PlacedPriority
from placement_worker import Placement
from scheduler_worker.placing.scheduler import Scheduler
from scheduler_worker.queries import CellQueries
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_report, keeps_its_index, on_hosts
from tests.support.placement_calls import must_take
from tests.support.scheduler_builders import a_request
from tests.support.schedulers import messages_of, scheduler_of

RACKS = {1: "r1", 2: "r1", 3: "r2", 4: "r2"}  # of hosts with 8 processors


@pytest.fixture
def url() -> str:
    """Return one type of database: the tests of each feature run the statements on both."""
    return "sqlite+aiosqlite://"


@dataclass
class FullCloud:
    """Four hosts in two racks, with instances of low priority, and a scheduler."""

    placement: Placement
    scheduler: Scheduler
    instances: dict[str, Instance]
    classes: PriorityClasses

    async def fill(self, on: Mapping[int, Sequence[tuple[int, int]]]) -> None:
        """Place instances on hosts: (processors, priority). Their numbers are 11, 12, … on host 1."""
        for host, several in on.items():
            for number, (vcpus, priority) in enumerate(several, 10 * host + 1):
                claim = a_claim(number, on_hosts(host, VCPU=vcpus))
                await must_take(self.placement, claim)
                self.instances[uid(number)] = Instance(
                    build=uid(number), status="active", cell="c1", host=f"host-{host}", root=uid(host, "a"),
                    project="p1", flavor="m", attempt=1, generation=1,
                    parts=PlacedParts(PlacedPriority(priority=priority)),
                )  # fmt: skip

    async def place(self, request: BuildRequested) -> dict[str, set[str]]:
        """Return the hosts that got instances, with their victims; empty if the request was unplaceable."""
        found: dict[str, set[str]] = {}
        for message in await messages_of(self.scheduler, request):
            if isinstance(message, BuildPlaced):
                victims = {victim.build for victim in victims_of_placed(message.parts)}
                assert found.setdefault(message.chosen.host, victims) == victims
            else:
                assert isinstance(message, BuildUnplaceable)
        await keeps_its_index(self.placement)
        assert not await placement_breaches(self.placement.database)
        assert not self.scheduler.pending.unsettled
        return found

    async def held(self) -> set[str]:
        """Return the instances of low priority that hold resources."""
        query = FindAllocations(consumers=tuple(self.instances))
        return {each.id for each in (await self.placement.lookups.allocations(query)).consumers}


async def found_among(instances: Mapping[str, Instance], query: FindInstances) -> InstancesFound:
    return InstancesFound(instances=tuple(each for each in instances.values() if each.root == query.host))


@pytest.fixture
async def cloud(placement: Placement, monkeypatch: pytest.MonkeyPatch) -> FullCloud:
    monkeypatch.setattr(victim_search, "CHECKS", 1)  # the evaluation accepts the first choice
    await placement.reports.report_many([a_report(number) for number in RACKS])
    for number, rack in RACKS.items():
        await placement.reports.label(LabelEditRequested(roots=(uid(number, "a"),), set={"rack": rack}))
    classes = PriorityClasses(placement.database)
    classes.by_value = {7: PriorityClass(name="high", value=7, preempts=True)}
    instances: dict[str, Instance] = {}
    cells = CellQueries(instances=partial(found_among, instances), builds=_unused)
    victims = VictimSearch(classes, cells)
    victims.limits_of = limits_of
    scheduler = scheduler_of(placement, fallbacks=[victims])
    return FullCloud(placement, scheduler, instances, classes)


async def _unused(question: object) -> Any:
    raise AssertionError(question)


def a_gang(*parts: tuple[int, int], **fields: Any) -> BuildRequested:
    """Return a request with these parts: (instances, processors)."""
    roles = tuple(
        GangRole(name=f"r{at}", flavor=Flavor(name=f"f{at}", vcpus=vcpus), count=count)
        for at, (count, vcpus) in enumerate(parts)
    )
    total = sum(role.count for role in roles)
    fields |= {"roles": roles if len(roles) > 1 else (), "project": "p1", "priority": 7}
    return a_request(1, instances=total, flavor=roles[0].flavor, **fields)


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

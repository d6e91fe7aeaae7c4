"""A full cloud with racks, for gangs that preempt."""

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
from features.preemption import victim_search
from features.preemption.messages import PriorityClass, victims_of_placed
from features.preemption.priorities import PriorityClasses
from features.preemption.victim_search import VictimSearch
from features.preemption.with_groups.scheduler import limits_of
from features.topology.messages import GangRole
from features.waiting.messages import PlacedPriority
from placement_worker.testing import Placement
from scheduler_worker.extension import CellQueries
from scheduler_worker.testing import Scheduler
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_report, keeps_its_index, on_hosts
from tests.support.placement_calls import must_take
from tests.support.scheduler_builders import a_request
from tests.support.schedulers import messages_of, scheduler_of

RACKS = {1: "r1", 2: "r1", 3: "r2", 4: "r2"}  # of hosts with 8 processors


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

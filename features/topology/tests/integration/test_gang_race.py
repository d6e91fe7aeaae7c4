"""Gangs of three roles, placed by several schedulers at once on PostgreSQL: each holds all hosts or none."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from berth.kit.testing import allocations, placement_breaches
from bus.claims import Choice, Claimed, ClaimRequested, ConsumerClaim
from bus.domains import LabelEditRequested
from bus.errors import Poison, Retry
from bus.messages import BuildPlaced, BuildRequested, BuildUnplaceable
from bus.reports import Inventory
from features.groups.constraints import DomainConstraints
from features.topology.messages import topology_of
from features.topology.tests.support.topology_clouds import a_gang
from placement_worker.testing import Placement
from scheduler_worker.testing import Scheduler
from tests.support.ids import uid
from tests.support.placement_builders import a_report, racing_placements
from tests.support.schedulers import scheduler_of

pytestmark = [pytest.mark.services, pytest.mark.slow]

SCHEDULERS, RACKS, HOSTS_A_RACK, GANGS = 4, 6, 4, 45
ROOM = {"VCPU": Inventory(total=8), "MEMORY_MB": Inventory(total=64), "DISK_GB": Inventory(total=1000)}
ROLES = ((2, 2, 2), (1, 4, 8), (2, 1, 1))  # instances, VCPU, memory: 10 VCPU in all; a rack has 32
TOPOLOGIES = (
    DomainConstraints(pack="rack"),
    DomainConstraints(pack="rack", spread="host", max_per_domain=2),
    DomainConstraints(spread="rack"),
)


def rack_of(root: str) -> str:
    return f"r{int(root.rsplit('-', 1)[1]) // HOSTS_A_RACK}"


@asynccontextmanager
async def a_cloud(url: str) -> AsyncIterator[list[Placement]]:
    async with racing_placements(url, SCHEDULERS) as made:
        numbers = range(RACKS * HOSTS_A_RACK)
        await made[0].reports.report_many([a_report(number, inventories=ROOM) for number in numbers])
        for number in numbers:
            root = uid(number, "a")
            await made[0].reports.label(LabelEditRequested(roots=(root,), set={"rack": rack_of(root)}))
        for placement in made:
            await placement.memory.fresh()
        yield made


class GangWatch:
    """Checks the stored allocations of all gangs again and again while schedulers work."""

    def __init__(self, placement: Placement, gangs: Sequence[BuildRequested]) -> None:
        self._placement = placement
        self._gangs = gangs

    async def forever(self) -> None:
        while True:
            await self.once()
            await asyncio.sleep(0)

    async def once(self) -> set[str]:
        """Raise AssertionError if a gang is partial or a rule is broken; return the placed requests."""
        held = await allocations(self._placement.database)
        placed = set()
        for gang in self._gangs:
            there = [instance for instance in gang.instances if instance in held]
            assert len(there) in (0, len(gang.instances)), f"{gang.request} is partial: {len(there)}"
            roots = [root for instance in there for root in held[instance][1]]
            self._check_domains(gang, roots)
            if there:
                placed.add(gang.request)
        assert await placement_breaches(self._placement.database) == []
        return placed

    def _check_domains(self, gang: BuildRequested, roots: Sequence[str]) -> None:
        racks = Counter(map(rack_of, roots))
        topology = topology_of(gang.parts)
        if topology.pack:
            assert len(racks) <= 1, f"{gang.request} is in {racks}"
        if topology.spread == "rack":
            assert max(racks.values(), default=0) <= 1
        if topology.spread == "host":
            assert max(Counter(roots).values(), default=0) <= 2


Ends = list[BuildPlaced | BuildUnplaceable]


async def placed_by(scheduler: Scheduler, gang: BuildRequested, chance: random.Random) -> Ends:
    """Deliver a request until it has ended, as the broker does after a retry."""
    for _ in range(200):
        await scheduler.source.fresh()  # the index follows the other processes' commits
        [verdict] = await scheduler.place_many([gang])
        if not isinstance(verdict, Retry):
            assert not isinstance(verdict, Poison), verdict
            return [each for each in verdict if isinstance(each, BuildPlaced | BuildUnplaceable)]
        await asyncio.sleep(chance.random() * 0.02)  # the order of retries is by chance
    raise AssertionError(f"{gang.request} did not end: {verdict}")


async def swapped(placement: Placement, placed: BuildPlaced) -> bool:
    """Claim the alternates of a failed member as its conductor does; return whether one was claimed."""
    choices = tuple(Choice(each.choice.allocations, each.choice.shapes) for each in placed.alternates)
    if not choices:
        return False
    claim = ConsumerClaim(consumer=placed.build, generation=placed.generation, choices=choices)
    [answer] = await placement.claims.claim_many([ClaimRequested(claims=(claim,))])
    return isinstance(answer.results[0], Claimed)


async def test_gangs_of_concurrent_schedulers_are_never_partial(database_url: str) -> None:
    chance = random.Random(31)
    gangs = [a_gang(number, chance.choice(TOPOLOGIES), *ROLES) for number in range(1, GANGS + 1)]
    async with a_cloud(database_url) as placements:
        schedulers = [scheduler_of(placement) for placement in placements]
        watch = GangWatch(placements[0], gangs)
        watching = asyncio.ensure_future(watch.forever())
        swaps: list[bool] = []

        async def place(number: int) -> None:
            """Deliver a request, sometimes to two schedulers at once; one member fails afterwards."""
            own = random.Random(number)
            gang = gangs[number]
            to = own.sample(schedulers, 2 if own.random() < 0.3 else 1)
            ends = await asyncio.gather(*(placed_by(scheduler, gang, own) for scheduler in to))
            hosts = [end for end in ends[0] if isinstance(end, BuildPlaced)]
            assert len(hosts) in (0, len(gang.instances))
            if hosts:
                swaps.append(await swapped(own.choice(placements), own.choice(hosts)))
            if number % 5 == 0:
                await watch.once()  # the parallel watch may get few turns on a busy machine

        try:
            for at in range(0, GANGS, 15):
                await asyncio.gather(*(place(number) for number in range(at, min(at + 15, GANGS))))
                assert not watching.done(), watching.exception()
        finally:
            watching.cancel()
        placed = await watch.once()
        assert GANGS // 6 < len(placed) < GANGS, len(placed)  # 192 VCPU for gangs of 10
        assert any(swaps)

"""Boots into server groups, all workers: two schedulers, two placements on one PostgreSQL, a conductor that
is killed while it falls over to alternates."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildEnded, BuildRequested, BuildUnplaceable, FindGroups, GroupEditRequested
from bus.resources import MakeGroup
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Flavor, GroupPolicy, Hints, ServerGroup
from cell_conductor import cell_conductor
from compute_sim import Durations, FaultPlan, compute_sim, fleet
from placement_worker import Placement, breaches, placement_worker
from tests.support.cloud_workers import Make, a_scheduler
from tests.support.ids import uid
from tests.support.waiting import in_time, until

pytestmark = pytest.mark.services

GROUP = uid(1, "9")
HOSTS, AT_ONCE = 12, 20
FLAVOR = Flavor(name="small", vcpus=1, memory_mb=64)


class GroupCloud:
    """Twelve hosts of one cell, and whoever serves them; each can be killed and started again."""

    def __init__(self, url: str, running: asyncio.TaskGroup, faults: FaultPlan) -> None:
        self.broker = LocalBroker()
        self.clock = Clock()
        self.ends: dict[str, BuildEnded | BuildUnplaceable] = {}
        self._running = running
        self._lives: dict[str, asyncio.Task[None]] = {}
        self.placements = [Database(url, namespace="placement") for _ in range(2)]
        self.builds = Database(url, namespace="cell")
        agents = fleet(("c1",), HOSTS, vcpus=8, memory_mb=8192, disk_gb=100)
        self._made: dict[str, Make] = {
            f"placement {number}": lambda bus, database=database: placement_worker(
                Placement(database, self.clock), bus.publish
            )
            for number, database in enumerate(self.placements)
        }
        self._made |= {f"scheduler {number}": lambda bus: a_scheduler(bus, self.clock) for number in range(2)}
        self._made["conductor"] = lambda bus: cell_conductor(
            "c1", self.builds, bus.asker_of_many(topics.CLAIM), bus.asker_of_many(topics.RELEASE),
            clock=self.clock, look_every=0.1, stalled_after=1.0,
        )  # fmt: skip
        for agent in agents:
            self._made[f"agent {agent.agent}"] = lambda bus, agent=agent: compute_sim(
                agent.agent, agent.cell, agent.hosts, faults=faults, clock=self.clock
            )

    async def start(self) -> None:
        await migrate(self.placements[0], "placement_worker")
        await migrate(self.builds, "cell_conductor")
        for name in self._made:
            self.revive(name)

    def revive(self, name: str) -> None:
        self._lives[name] = self._running.create_task(self._live(self._made[name]))

    async def kill(self, name: str) -> None:
        life = self._lives.pop(name)
        life.cancel()
        await asyncio.wait([life])

    async def end(self) -> None:
        for name in [*self._lives]:
            await self.kill(name)
        for database in (*self.placements, self.builds):
            await database.close()

    async def _live(self, make: Make) -> None:
        async with Bus(LocalTransport(self.broker), self.clock) as bus:
            await bus.serve(make(bus), asyncio.Event())

    async def hold(self) -> None:
        """Look all the while, at whatever was committed."""
        while True:
            assert await breaches(self.placements[1]) == []
            await asyncio.sleep(0.01)


@asynccontextmanager
async def a_group_cloud(
    url: str, policy: GroupPolicy, **faults: float
) -> AsyncIterator[tuple[GroupCloud, Bus]]:
    plan = FaultPlan(seed=1, durations=Durations.parse("constant:0.05"), **faults)
    async with asyncio.TaskGroup() as running, AsyncExitStack() as stack:
        cloud = GroupCloud(url, running, plan)
        stack.push_async_callback(cloud.end)
        await cloud.start()
        bus = await stack.enter_async_context(Bus(LocalTransport(cloud.broker)))
        make = MakeGroup(group=GROUP, name="web", policy=policy)
        await in_time(bus.asker(topics.EDIT_GROUP)(GroupEditRequested(edit=make)))
        ended, unplaceable = (
            await bus.listen(topics.BUILD_ENDED.at()),
            await bus.listen(topics.BUILD_UNPLACEABLE.at()),
        )

        async def hear() -> None:
            while True:
                said = await ended.get()
                cloud.ends[said.build] = said

        async def hear_of_none() -> None:
            while True:
                said = await unplaceable.get()
                cloud.ends.update(dict.fromkeys(said.instances, said))

        tasks = [running.create_task(one()) for one in (hear, hear_of_none, cloud.hold)]
        stack.callback(lambda: [task.cancel() for task in tasks])
        yield cloud, bus


def requests(count: int, group: str | None, first: int = 0) -> list[BuildRequested]:
    return [
        BuildRequested(
            request=uid(number, "b"),
            instances=(uid(number),),
            flavor=FLAVOR,
            alternates=5,
            hints=Hints(group=group),
        )
        for number in range(first, first + count)
    ]


async def booted(cloud: GroupCloud, bus: Bus, asked: Sequence[BuildRequested]) -> Counter[str]:
    """How they ended."""
    await bus.publish(*asked)
    await until(lambda: all(one.instances[0] in cloud.ends for one in asked))
    return Counter(_end(cloud.ends[one.instances[0]]) for one in asked)


def _end(said: BuildEnded | BuildUnplaceable) -> str:
    return said.status if isinstance(said, BuildEnded) else "unplaceable"


async def the_group(bus: Bus) -> ServerGroup:
    [group] = (await bus.asker(topics.GROUPS)(FindGroups(ids=(GROUP,)))).groups
    return group


async def test_when_hosts_run_out_for_a_group_those_who_come_too_late_are_told_so(database_url: str) -> None:
    """Ten of a group, and four more of it among twenty at once: two find a host."""
    async with a_group_cloud(database_url, "anti-affinity") as (cloud, bus):
        assert await booted(cloud, bus, requests(10, GROUP)) == {"active": 10}
        late, others = requests(4, GROUP, 100), requests(AT_ONCE - 4, None, 200)
        assert await booted(cloud, bus, [*late, *others]) == {"active": AT_ONCE - 2, "unplaceable": 2}
        said = [cloud.ends[one.instances[0]] for one in late]
        reasons = [one.reason for one in said if isinstance(one, BuildUnplaceable)]
        assert len(reasons) == 2
        assert all("server group" in reason for reason in reasons), reasons
        places = [root for roots in (await the_group(bus)).members.values() for root in roots]
        assert len(places) == len(set(places)) == HOSTS


async def test_a_group_holds_while_builds_fail_and_their_conductor_is_killed(database_url: str) -> None:
    async with a_group_cloud(database_url, "anti-affinity", reschedule=0.4) as (cloud, bus):
        asked = [*requests(10, GROUP), *requests(AT_ONCE - 10, None, 100)]
        await bus.publish(*asked)
        for so_many in (1, 5, 9):  # have ended, and of the others some are between two hosts
            await until(lambda: len(cloud.ends) >= so_many)  # noqa: B023  awaited here
            await cloud.kill("conductor")
            cloud.revive("conductor")
        ends = await booted(cloud, bus, asked)  # asked once more, by an impatient client
        assert ends["active"] > AT_ONCE // 2 and ends["unplaceable"] == 0
        members = (await the_group(bus)).members
        active = {one.instances[0] for one in asked[:10] if _end(cloud.ends[one.instances[0]]) == "active"}
        assert members.keys() == active
        assert len({root for roots in members.values() for root in roots}) == len(active)
        tried = [
            attempt
            for said in cloud.ends.values()
            if isinstance(said, BuildEnded)
            for attempt in said.attempts
        ]
        assert any(attempt.outcome == "failed" for attempt in tried)


@pytest.mark.parametrize("policy", ["soft-affinity", "soft-anti-affinity"])
async def test_a_soft_group_refuses_nobody(database_url: str, policy: GroupPolicy) -> None:
    async with a_group_cloud(database_url, policy) as (cloud, bus):
        assert await booted(cloud, bus, requests(AT_ONCE, GROUP)) == {"active": AT_ONCE}
        assert len((await the_group(bus)).members) == AT_ONCE


async def test_those_who_are_to_be_together_are(database_url: str) -> None:
    async with a_group_cloud(database_url, "affinity") as (cloud, bus):
        ends = await booted(cloud, bus, requests(AT_ONCE, GROUP))
        assert ends["active"] >= 8  # of its VCPUs a host sells four times as many
        assert len(set((await the_group(bus)).members.values())) == 1

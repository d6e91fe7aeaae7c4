"""Boots into server groups on real services: two scheduler processes, two placements on one PostgreSQL, a
conductor that is killed while builds fall over to alternates; placement is asked after each step."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count, islice

import pytest

from berth import wiring
from berth.settings import Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.groups import FindGroups, GroupEditRequested, GroupPolicy, MakeGroup, ServerGroup
from bus.messages import BuildEnded, BuildRequested, BuildUnplaceable
from bus.requests import Flavor, Hints
from compute_sim import FaultPlan
from placement_worker import breaches
from tests.support.berth_processes import Running, another, running, settled
from tests.support.ids import uid
from tests.support.waiting import in_time, until

pytestmark = [pytest.mark.services, pytest.mark.slow]

WEB, SOFT, SPREAD, NEAR = (uid(number, "9") for number in range(1, 5))
HOSTS, AT_ONCE = 12, 20
FLAVOR = Flavor(name="small", vcpus=1, memory_mb=64)
FAIL = 0.5
NUMBERS = count()
CONDUCTOR = "conductor.c1"


def ids(fails: bool) -> Iterator[str]:
    plan = FaultPlan(seed=1, reschedule=FAIL)
    for number in NUMBERS:
        if (plan.fate(uid(number), 1).kind == "reschedule") is fails:
            yield uid(number)


def requests(several: int, group: str | None, *, failing: int = 0) -> list[BuildRequested]:
    """One instance each; so many of them fall over to an alternate."""
    builds = [*islice(ids(True), failing), *islice(ids(False), several - failing)]
    return [
        BuildRequested(
            request=f"b{build[1:]}",
            instances=(build,),
            flavor=FLAVOR,
            alternates=10,
            hints=Hints(group=group),
        )
        for build in builds
    ]


class GroupCloud:
    def __init__(self, berth: Running) -> None:
        self.bus: Bus = berth.bus
        self.berth = berth
        self.ends: dict[str, BuildEnded | BuildUnplaceable] = {}

    async def hear_of_ends(self) -> None:
        listener = await self.bus.listen(topics.BUILD_ENDED.at(reply_to=""))
        while True:
            said = await listener.get()
            self.ends[said.build] = said

    async def hear_of_none(self) -> None:
        listener = await self.bus.listen(topics.BUILD_UNPLACEABLE.at(reply_to=""))
        while True:
            said = await listener.get()
            self.ends.update(dict.fromkeys(said.instances, said))

    async def two_schedulers(self) -> None:
        heard, listener = set[str](), await self.bus.listen(topics.SCHEDULER_ALIVE.at())
        while len(heard) < 2:
            heard.add((await listener.get()).scheduler)

    async def make(self, group: str, policy: GroupPolicy) -> None:
        edit = MakeGroup(group=group, name=policy, policy=policy)
        await in_time(self.bus.asker(topics.EDIT_GROUP)(GroupEditRequested(edit=edit)))

    async def booted(self, asked: Sequence[BuildRequested], *, killing: str = "") -> Counter[str]:
        await self.bus.publish(*asked)
        mine = [request.instances[0] for request in asked]
        if killing:
            await until(
                lambda: sum(one in self.ends for one in mine) >= AT_ONCE // 4, "some have ended", 60.0
            )
            await self.berth.kill(killing)
        await until(lambda: all(one in self.ends for one in mine), "all have ended", 60.0)
        return self.how(asked)

    def how(self, asked: Sequence[BuildRequested]) -> Counter[str]:
        return Counter(end_of(self.ends[request.instances[0]]) for request in asked)

    async def group(self, group: str) -> ServerGroup:
        found: list[ServerGroup] = []

        async def calm() -> bool:
            found[:] = (await self.bus.asker(topics.GROUPS)(FindGroups(ids=(group,)))).groups
            return not found[0].left

        await until(calm, "what was left is gone")
        return found[0]

    async def places(self, group: str, among: Sequence[BuildRequested]) -> list[str]:
        members = (await self.group(group)).members
        active = {
            request.instances[0] for request in among if end_of(self.ends[request.instances[0]]) == "active"
        }
        assert members.keys() == active
        return [root for roots in members.values() for root in roots]


def end_of(said: BuildEnded | BuildUnplaceable) -> str:
    return said.status if isinstance(said, BuildEnded) else "unplaceable"


@asynccontextmanager
async def a_group_cloud(settings: Settings) -> AsyncIterator[GroupCloud]:
    database = wiring.database(settings, wiring.Role("placement"))

    async def hold() -> None:
        while True:
            assert await breaches(database) == []
            await asyncio.sleep(0.02)

    async with running(settings) as berth, another(settings, "scheduler"), another(settings, "placement"):
        cloud = GroupCloud(berth)
        await in_time(cloud.two_schedulers())
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(callable()) for callable in (cloud.hear_of_ends, cloud.hear_of_none, hold)
            ]
            yield cloud
            for task in tasks:
                task.cancel()
    await database.close()


@pytest.mark.soak  # always: test_group_race
async def test_groups_hold_while_builds_fail_over_and_their_conductor_is_killed(
    amqp_url: str, database_url: str, bus_name: str
) -> None:
    settings = Settings().having(
        amqp_url=amqp_url,
        database_url=database_url,
        exchange=bus_name,
        cells=("c1",),
        hosts=HOSTS,
        fail=FAIL,
        build_time="constant:0.7",
        heartbeat=2.0,
    )
    async with asyncio.timeout(240), a_group_cloud(settings) as cloud:
        await cloud.make(WEB, "anti-affinity")
        failing, steady = requests(2, WEB, failing=2), requests(8, WEB)
        others = requests(AT_ONCE - 10, None, failing=8)
        web = [*failing, *steady]
        assert (await cloud.booted([*web, *others], killing=CONDUCTOR))["active"] >= AT_ONCE - 2
        assert cloud.how(steady) == {"active": 8}
        assert cloud.how(failing)["unplaceable"] == 0
        places = await cloud.places(WEB, web)
        assert len(places) == len(set(places))
        tried = [len(end.attempts) for end in cloud.ends.values() if isinstance(end, BuildEnded)]
        assert sum(several > 1 for several in tried) >= 8

        # Two more of it than there are hosts left.
        late = requests(HOSTS - len(places) + 2, WEB)
        others = requests(AT_ONCE - len(late), None, failing=8)
        assert await cloud.booted([*late, *others], killing=CONDUCTOR) == {
            "active": AT_ONCE - 2,
            "unplaceable": 2,
        }
        refused = [
            said for request in late if isinstance(said := cloud.ends[request.instances[0]], BuildUnplaceable)
        ]
        assert len(refused) == 2
        assert all("server group" in unplaceable.reason for unplaceable in refused), refused
        assert {unplaceable.decision.code for unplaceable in refused} == {"server_group"}
        places = await cloud.places(WEB, [*web, *late])
        assert len(places) == len(set(places)) == HOSTS

        for group, policy in ((SOFT, "soft-affinity"), (SPREAD, "soft-anti-affinity")):
            await cloud.make(group, policy)  # type: ignore[arg-type]
            soft = requests(AT_ONCE, group, failing=5)
            assert await cloud.booted(soft) == {"active": AT_ONCE}, policy
            assert len(await cloud.places(group, soft)) == AT_ONCE

        await cloud.make(NEAR, "affinity")
        near = requests(AT_ONCE, NEAR)
        await cloud.booted(near)
        assert len(set(await cloud.places(NEAR, near))) == 1
        assert (await settled(settings, 20.0)).clean

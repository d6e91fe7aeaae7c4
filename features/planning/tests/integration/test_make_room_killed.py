"""Room is made under load while processes are killed with SIGKILL: no build is lost, no host stays closed."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from berth.configuration import EFFECTIVE_ENV
from berth.kit import Settings, host_named, reported_hosts
from berth.kit.testing import audit, state_of
from bus import topics
from bus.clock import Clock
from bus.messages import BuildEnded, BuildRequested, BuildUnplaceable
from bus.parts import PlanParts
from bus.requests import Flavor
from bus.resources import FindAllocations
from features.moves.messages import FIND_PLANS, FindMoves, FindPlans, PlanOfMoves, PlanStands
from features.moves.moving import moves_of
from features.moves.plan_requests import PlanListener, start_plan
from features.planning.messages import Balancing, PlanBalance, PlannedStep, PlanningGoal, PlanRoom
from features.planning.room_requests import RoomListener, make_room
from tests.support.berth_processes import LAYOUTS, ROOT, Running, running
from tests.support.request_parts import with_parts
from tests.support.waiting import in_time, receive_all, until

pytestmark = [pytest.mark.services, pytest.mark.soak]

HOSTS = 6
ROLES = ("scheduler", "placement", "conductor.c1", "compute.c1.c1-agent1", "compute.c1.c1-agent2")
DYING = """
import sys
from berth.__main__ import main
sys.argv = ["berth", "move", "make-room", "--vcpus", "1", "--memory-mb", "80000", "--disk-gb", "1"]
main()
"""


def flavor(memory_mb: int) -> Flavor:
    return Flavor(name=f"of {memory_mb}", vcpus=1, memory_mb=memory_mb, disk_gb=1)


@dataclass
class LoadedSite:
    """Six hosts with four instances of 24,000 MB each, and clients that request small builds all the time."""

    berth: Running
    ends: dict[str, BuildEnded] = field(default_factory=dict)
    unplaceable: list[BuildUnplaceable] = field(default_factory=list)
    requested: set[str] = field(default_factory=set)
    large: set[str] = field(default_factory=set)  # the instances that fill the hosts

    async def boot(self, memory_mb: int, host: str = "", wait: str = "") -> str:
        build = Clock().uuid()
        self.requested.add(build)
        asked = BuildRequested(
            request=build,
            instances=(build,),
            flavor=flavor(memory_mb),
            forced_host=host,
            **with_parts({"wait": wait}),
        )
        await self.berth.bus.publish(asked)
        return build

    async def fill(self) -> None:
        for host in await self.hosts():
            for _ in range(4):
                self.large.add(await self.boot(24_000, host))
        await until(lambda: self.requested <= self.ends.keys(), "the hosts are filled", 120.0)
        await self._until_none_builds()

    async def _until_none_builds(self) -> None:
        """Wait for heartbeats without builds in progress: plans do not move instances to hosts with many."""
        reports, idle = await self.berth.bus.listen(topics.HOST_REPORTED.at(cell="c1")), set[str]()
        while len(idle) < HOSTS:
            for host in (await in_time(reports.get())).hosts:
                (idle.discard if host.building else idle.add)(host.root)

    async def hosts(self) -> list[str]:
        return sorted([host.host async for host in reported_hosts(self.berth.bus)])

    async def load(self) -> None:
        while True:
            await self.boot(64, wait="5m")
            await asyncio.sleep(0.1)

    async def all_open(self) -> bool:
        states = {state_of(await host_named(self.berth.bus, host)) for host in await self.hosts()}
        return states == {"open"}

    async def settled(self) -> bool:
        found = await audit(self.berth.settings, settled=True)
        return found.clean and set(found.types) <= {"INSTANCE"}


@asynccontextmanager
async def loaded_site(settings: Settings, *, load: bool = True) -> AsyncIterator[LoadedSite]:
    async with running(settings) as berth, asyncio.TaskGroup() as group:
        site = LoadedSite(berth)
        ends = await berth.bus.listen(topics.BUILD_ENDED.at())
        refused = await berth.bus.listen(topics.BUILD_UNPLACEABLE.at())
        tasks = [
            group.create_task(receive_all(ends, lambda end: site.ends.setdefault(end.build, end))),
            group.create_task(receive_all(refused, site.unplaceable.append)),
        ]
        try:
            await site.fill()
            if load:
                tasks.append(group.create_task(site.load()))
            yield site
        finally:
            for task in tasks:
                task.cancel()


@pytest.fixture(params=LAYOUTS)
def settings(request: pytest.FixtureRequest, servers: Settings, tmp_path: Path) -> Settings:
    return servers.having(
        simulator={
            "hosts": HOSTS,
            "agents_per_cell": 2,
            "build_time": "constant:0.05",
            "move_time": "constant:0.4",
        },
        state_dir=str(tmp_path),
        heartbeat=0.5,
        layout=request.param,
    )


async def nothing_lost(site: LoadedSite) -> None:
    requested = {*site.requested}
    await until(lambda: requested <= site.ends.keys(), "every build has ended", 120.0)
    assert site.unplaceable == []
    assert {site.ends[build].status for build in requested} == {"active"}
    await until(site.all_open, "every host is open", 60.0)
    await until(site.settled, "clean", 60.0, picture=lambda: audit(site.berth.settings, settled=True))


class FirstMove(RoomListener):
    """Notes that the first move is requested."""

    def __init__(self) -> None:
        self.began = asyncio.Event()

    def so_far(self, stands: PlanStands) -> None:
        if stands.under_way:
            self.began.set()


async def test_room_is_made_while_every_worker_is_killed(settings: Settings) -> None:
    async with loaded_site(settings) as site:
        build = Clock().uuid()
        request = BuildRequested(request=build, instances=(build,), flavor=flavor(80_000))
        first = FirstMove()
        making = asyncio.create_task(make_room(site.berth.bus, PlanRoom(request=request), 1, first))
        making.add_done_callback(lambda _: first.began.set())  # its result is judged below
        await in_time(first.began.wait())
        for role in ROLES:
            await site.berth.kill(role)
            await asyncio.sleep(0.3)
        async with asyncio.timeout(180):
            made = await making
        assert made.code == "" and len(made.goal.moved) >= 2, made
        await site.boot(80_000, wait="1m")
        await nothing_lost(site)
        print(f"{len(site.requested)} builds, {len(made.goal.moved)} moves, 0 lost")


async def test_a_rebalancing_goes_on_while_schedulers_are_killed(settings: Settings) -> None:
    async with loaded_site(settings, load=False) as site:
        hosts = await site.hosts()
        roots = {host: (await host_named(site.berth.bus, host)).id for host in hosts}
        build_on = {end.host: build for build, end in site.ends.items() if build in site.large}

        def step(source: str, destination: str) -> PlannedStep:
            return PlannedStep(
                build=build_on[source], kind="live", cell="c1", source=roots[source], source_host=source,
                destination=roots[destination], destination_host=destination,
            )  # fmt: skip

        a, b, c, d, e, f = hosts
        steps = (step(a, b), step(c, d), step(e, f))
        goal = Balancing(query=PlanBalance(gain=1), planned=steps)
        plan = PlanOfMoves(
            id=Clock().uuid(), parts=PlanParts(PlanningGoal(balance=goal)), most=3, plan="rebalance"
        )
        followed = await start_plan(site.berth.bus, plan, PlanListener())
        ending = asyncio.create_task(followed.ended())
        await site.berth.kill("scheduler")
        await until(lambda: _has_moved(site, steps[0].build), "a move has ended")
        await site.berth.kill("scheduler")
        async with asyncio.timeout(60):
            stands = await ending
        assert (stands.code, stands.moved, len(followed.moved)) == ("", 3, 3), stands
        await nothing_lost(site)
        moved = {build_on[source]: there for source, there in ((a, b), (c, d), (e, f))}
        found = await site.berth.bus.asker(topics.ALLOCATIONS)(FindAllocations(consumers=tuple(moved)))
        assert {each.id: [*each.allocations] for each in found.consumers} == {
            build: [roots[host]] for build, host in moved.items()
        }


async def test_a_plan_goes_on_without_its_command(settings: Settings, tmp_path: Path) -> None:
    async with loaded_site(settings) as site:
        command = await start(DYING, settings, tmp_path)
        await until(lambda: _is_closed(site), "a host is closed", 60.0)
        command.send_signal(signal.SIGKILL)
        await command.wait()
        running = site.berth.bus.asker(FIND_PLANS)
        [plan] = (await running(FindPlans())).plans

        async def ended() -> PlanStands | None:
            [stands] = (await running(FindPlans(plans=(plan.plan.id,)))).plans
            return stands if stands.ended else None

        await until(ended, "the plan has ended", 120.0)
        stands = await ended()
        assert stands is not None and stands.code == "" and stands.moved, stands
        await nothing_lost(site)


async def start(program: str, settings: Settings, directory: Path) -> asyncio.subprocess.Process:
    variables = {
        **os.environ, "PYTHONPATH": str(ROOT), EFFECTIVE_ENV: msgspec.json.encode(settings).decode(),
    }  # fmt: skip
    return await asyncio.create_subprocess_exec(sys.executable, "-c", program, env=variables, cwd=directory)


async def _has_moved(site: LoadedSite, build: str) -> bool:
    found = await moves_of(site.berth.bus, FindMoves(cell="c1", builds=(build,))) or ()
    return any(stands.phase == "done" for stands in found)


async def _is_closed(site: LoadedSite) -> bool:
    return not await site.all_open()

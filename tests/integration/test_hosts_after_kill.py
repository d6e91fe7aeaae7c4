"""After schedulers were killed, no build goes to a host that was dead, disabled or forced down before."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from berth import wiring
from berth.commands.run import ready
from berth.operations.boot_options import BootOptions, boot_request
from berth.operations.host_states import forcing_down, host_named
from berth.settings import Settings
from berth.worker_roles import Role, roles
from bus import topics
from bus.delivery.runner import Bus, Listener
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildEnded, BuildRequested, HostReported
from bus.queries import WhatIf
from bus.reports import HostState, Inventory
from bus.resources import FindProviders
from scheduler_worker.store import host_health
from tests.support.berth_processes import another, running
from tests.support.ids import uid
from tests.support.placement_builders import a_report
from tests.support.waiting import in_time, until

DEADLINE = 150.0
DEAD, DISABLED, FORCED_DOWN = HOSTS = (1, 2, 3)
LARGE = {
    "VCPU": Inventory(total=10_000),
    "MEMORY_MB": Inventory(total=10_000_000),
    "DISK_GB": Inventory(total=1_000_000),
}
BUILDS = 6
ANSWERS = 8  # each of two schedulers gives some of them


@dataclass
class BerthWithAgents:
    """A berth with simulated hosts, and three further hosts with an agent each."""

    settings: Settings
    bus: Bus
    kill_schedulers: Callable[[], Awaitable[None]]  # and starts one again
    sequence: int = 0

    async def report_hosts(self) -> None:
        for number in HOSTS:
            await self.bus.publish(a_report(number, inventories=LARGE))
            await self.heartbeat(number)
        await until(self.reported, "placement has the hosts")
        await forcing_down(True)(self.bus, await host_named(self.bus, f"host-{FORCED_DOWN}"))

    async def reported(self) -> bool:
        asked = FindProviders(ids=tuple(uid(number, "a") for number in HOSTS))
        return len((await self.bus.asker(topics.PROVIDERS)(asked)).providers) == len(HOSTS)

    async def heartbeat(self, number: int, enabled: bool = True) -> None:
        self.sequence += 1
        state = HostState(root=uid(number, "a"), host=f"host-{number}", enabled=enabled)
        report = HostReported(
            cell="c1", agent=f"agent-{number}", sequence=self.sequence, period=1.0, hosts=(state,)
        )
        await self.bus.publish(report)

    async def refused(self) -> bool:
        """Return whether all schedulers refuse the three hosts, of which two still send heartbeats."""
        await self.heartbeat(DISABLED, enabled=False)
        await self.heartbeat(FORCED_DOWN)
        ask = self.bus.asker(topics.WHAT_IF)
        found = [await ask(WhatIf(request=a_boot())) for _ in range(ANSWERS)]
        best = {host.host for answer in found for host in answer.best}
        known = bool(best) and best.isdisjoint(f"host-{number}" for number in HOSTS)
        return known and {"host-1", "host-2"} <= await self.recorded()

    async def recorded(self) -> set[str]:
        """Return the hosts whose health is stored: a scheduler stores changes within a second."""
        database = wiring.database(self.settings, Role("scheduler"))
        try:
            async with database.read() as tx:
                return {host.host for host in await host_health.page(tx, ("", ""), 10)}
        finally:
            await database.close()

    async def hosts_of_builds(self, ended: Listener[BuildEnded]) -> set[str]:
        """Boot BUILDS instances, and return their hosts."""
        for _ in range(BUILDS):
            await self.bus.publish(a_boot())
        ends = [await ended.get() for _ in range(BUILDS)]
        assert {(end.status, len(end.attempts)) for end in ends} == {("active", 1)}
        return {end.host for end in ends}


def a_boot() -> BuildRequested:
    return boot_request(BootOptions(vcpus=1, memory_mb=512, disk_gb=1))


@asynccontextmanager
async def as_processes(settings: Settings) -> AsyncIterator[BerthWithAgents]:
    async with running(settings) as berth, another(settings, "scheduler") as second:

        async def kill() -> None:
            second.send_signal(signal.SIGKILL)
            await second.wait()
            await berth.kill("scheduler")

        yield BerthWithAgents(settings, berth.bus, kill)


@asynccontextmanager
async def embedded(settings: Settings) -> AsyncIterator[BerthWithAgents]:
    """All workers in this process. The task of the scheduler is cancelled, and writes nothing then."""
    broker, lives = LocalBroker(), dict[str, asyncio.Task[None]]()
    async with asyncio.TaskGroup() as group, Bus(LocalTransport(broker)) as bus:

        def start(role: Role) -> None:
            life = wiring.serve([role], settings, LocalTransport(broker), asyncio.Event())
            lives[role.worker] = group.create_task(life)

        async def kill() -> None:
            lives["scheduler"].cancel()
            await asyncio.wait([lives["scheduler"]])
            start(Role("scheduler"))

        for role in roles(settings):
            start(role)
        await ready(bus, settings)
        yield BerthWithAgents(settings, bus, kill)
        for life in lives.values():
            life.cancel()


async def no_build_goes_there(cloud: BerthWithAgents) -> None:
    await cloud.report_hosts()
    await until(cloud.refused, "the dead host is down, the others are closed")
    ended = await cloud.bus.listen(topics.BUILD_ENDED.at())
    await cloud.kill_schedulers()
    assert await cloud.hosts_of_builds(ended) <= {"c1-host00001", "c1-host00002"}


@pytest.mark.services
@pytest.mark.slow
async def test_no_build_goes_to_a_refused_host_after_both_schedulers_were_killed(
    amqp_url: str, database_url: str, bus_name: str
) -> None:
    settings = Settings().having(
        amqp_url=amqp_url, database_url=database_url, exchange=bus_name, cells=("c1",), hosts=2,
        build_time="constant:0", heartbeat=1.0,
    )  # fmt: skip
    async with as_processes(settings) as cloud:
        await in_time(no_build_goes_there(cloud), DEADLINE)


async def test_no_build_goes_to_a_refused_host_after_an_embedded_scheduler_ended(tmp_path: Path) -> None:
    settings = Settings().having(
        cells=("c1",), hosts=2, state_dir=str(tmp_path), build_time="constant:0", heartbeat=1.0
    )
    async with embedded(settings) as cloud:
        await in_time(no_build_goes_there(cloud), DEADLINE)

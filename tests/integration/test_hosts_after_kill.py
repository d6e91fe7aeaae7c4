"""After schedulers were killed, no build goes to a host that was dead, disabled or forced down before."""

import asyncio
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from berth import wiring
from berth.commands.run import ready
from berth.operations.boot_options import BootOptions, boot_request
from berth.operations.host_states import forcing_down, host_named
from berth.services import embedded
from berth.settings import Settings
from berth.worker_roles import Role
from bus import topics
from bus.clock import monotonic
from bus.delivery.runner import Bus, Listener
from bus.messages import BuildEnded, BuildRequested, HostReported
from bus.queries import WhatIf
from bus.replication import PlacementChanged
from bus.reports import HostState, Inventory
from bus.requests import Flavor
from bus.resources import FindProviders
from bus.vocabulary import MAX_INT
from scheduler_worker import host_records
from tests.support.berth_processes import another, running
from tests.support.ids import uid
from tests.support.placement_builders import a_placement, a_report, last_told
from tests.support.random_messages import KINDS, RandomMessages
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
                return {host.host for host in await host_records.page(tx, ("", ""), 10)}
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


@pytest.mark.services
@pytest.mark.slow
async def test_no_build_goes_to_a_refused_host_after_both_schedulers_were_killed(
    amqp_url: str, database_url: str, bus_name: str
) -> None:
    settings = Settings().having(
        amqp_url=amqp_url, database_url=database_url, exchange=bus_name, cells=("c1",), hosts=2,
        build_time="constant:0", heartbeat=1.0,
    )  # fmt: skip
    async with (
        asyncio.timeout(DEADLINE),
        running(settings) as berth,
        another(settings, "scheduler") as second,
    ):
        cloud = BerthWithAgents(settings, berth.bus)
        await cloud.report_hosts()
        await until(cloud.refused, "the dead host is down, the others are closed")
        ended = await cloud.bus.listen(topics.BUILD_ENDED.at())
        second.send_signal(signal.SIGKILL)
        await second.wait()
        await berth.kill("scheduler")  # it starts again
        assert await cloud.hosts_of_builds(ended) <= {"c1-host00001", "c1-host00002"}


RELAY_DEADLINE = 60.0
ROOT = Path(__file__).parent.parent.parent

PROCESS = """
import asyncio, os, signal, sys
from bus.replication import ProviderChange
from placement_worker.store import changes
from tests.support.placement_builders import a_placement, uid

def die():
    os.kill(os.getpid(), signal.SIGKILL)

async def publish(*messages):
    print(*(one.number for one in messages), flush=True)
    die()

async def main(url, when):
    async with a_placement(url) as placement:
        for number in (1, 2):
            async with placement.database.write() as tx:
                await changes.announce(tx, [ProviderChange(uid(number, "a"), uid(number, "a"), 1, {})])
                if (number, when) == (2, "committed"):
                    tx.after_commit(die)
        await placement.log.relay.run(publish)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("database_url"))
    return f"sqlite+aiosqlite:///{tmp_path}/store.db"


@pytest.mark.parametrize(("when", "printed"), [("committed", ""), ("published", "1 2\n")])
async def test_commits_of_a_killed_process_are_published(url: str, when: str, printed: str) -> None:
    killed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", PROCESS, url, when],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RELAY_DEADLINE,
    )
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, printed), killed.stderr

    published: list[int] = []

    async def publish(*messages: PlacementChanged) -> None:
        published.extend(message.number for message in messages)

    async with a_placement(url) as placement:
        assert await last_told(placement) == 0
        relay = asyncio.ensure_future(placement.log.relay.run(publish))
        async with asyncio.timeout(RELAY_DEADLINE):
            while await last_told(placement) < 2:
                await asyncio.sleep(0.01)
        relay.cancel()
        await asyncio.gather(relay, return_exceptions=True)
    assert published == [1, 2]


FEW = 8 * len(KINDS)
AT_ONCE = 50
SECONDS = 1.0
CLOUD: dict[str, Any] = {"cells": ("c1",), "hosts": 20, "build_time": "constant:0.01"}


ID = "00000000-0000-4000-8000-00000000000a"
ABSURD = BuildRequested(request=ID, instances=(ID,), flavor=Flavor(name="x", vcpus=MAX_INT))


async def publish(bus: Bus, messages: RandomMessages, count: int) -> None:
    """Publish a flavor of as many processors as a number has room for, and random messages."""
    await bus.publish(ABSURD)
    answer = await bus.asker(topics.WHAT_IF)(WhatIf(request=ABSURD, room=True))
    assert not answer.fits
    for start in range(0, count, AT_ONCE):
        some = [messages.envelope(number) for number in range(start, min(start + AT_ONCE, count))]
        await bus.transport.publish(some, expected=[False] * len(some))


async def boot(bus: Bus, patience: float = 60.0) -> float:
    """Return the seconds until a boot is active."""
    request = replace(
        boot_request(BootOptions(vcpus=1, memory_mb=64, disk_gb=1, flavor="small")), reply_to=bus.clock.uuid()
    )
    ended = await bus.listen(topics.BUILD_ENDED.at(reply_to=request.reply_to))
    began = monotonic()
    await bus.publish(request)
    end = await in_time(ended.get(), patience)
    await ended.stop()
    assert end.status == "active", end
    return monotonic() - began


def messages(seed: int) -> RandomMessages:
    return RandomMessages(seed, cells=("c1",), agents=("c1-agent1", "nobody"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_boot_is_active_within_a_second_after_random_messages(seed: int, tmp_path: Path) -> None:
    settings = Settings().having(state_dir=str(tmp_path), **CLOUD)
    async with embedded(settings) as berth:
        await ready(berth.bus, settings)
        await publish(berth.bus, messages(seed), FEW)
        await boot(berth.bus)  # waits until what is queued before it is handled
        assert await boot(berth.bus) < SECONDS

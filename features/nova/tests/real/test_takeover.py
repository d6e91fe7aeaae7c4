"""berth takes over a running Nova region step by step and leaves it again, twice, while clients boot and
delete servers all the time. No server is lost or doubled.

The steps are those of features/nova/take-over.md. A proxy is in front of Placement, as in most clouds. It
holds requests while the contents are copied for the last time.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from deploy.nova import HostCapacity, NovaOptions, NovaRegion, find_nova, running_nova
from deploy.nova_client import wait_until
from deploy.nova_placements import Foundation, register, serving
from deploy.nova_processes import find_nova as nova_python
from deploy.nova_scheduling import berth_scheduling
from deploy.placement import ApiAccess, OpenStackPlacement
from deploy.servers import find_binaries
from features.nova.tests.real.berth_beside import BerthBeside, berth_database, berth_of
from features.nova.tests.real.checks import SECONDS, audit, check_allocations, spawns
from tests.support.servers import installed
from tests.support.switched_proxy import SwitchedProxy, switched_proxy

pytestmark = [pytest.mark.nova, pytest.mark.services, pytest.mark.asyncio(loop_scope="module")]


CLIENTS = 3
KEPT = 4  # servers of each client; the oldest is deleted when there is another
STEP_SECONDS = 60.0


@dataclass
class BootingClients:
    """Clients that boot servers without a pause and delete their oldest ones, and what came of it."""

    region: NovaRegion
    servers: list[deque[str]] = field(default_factory=lambda: [deque() for _ in range(CLIENTS)])
    accepted: list[str] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)
    seconds: list[float] = field(default_factory=list)  # from each request until the server was active

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Let the clients work until the block ends; each then ends what it has started."""
        is_over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for servers in self.servers:
                group.create_task(self._work(servers, is_over))
            yield
            is_over.set()

    async def _work(self, servers: deque[str], is_over: asyncio.Event) -> None:
        nova = self.region.nova
        while not is_over.is_set():
            began = time.monotonic()
            servers.append(await nova.boot())
            self.accepted.append(servers[-1])
            await nova.active(servers[-1], seconds=SECONDS)
            self.seconds.append(time.monotonic() - began)
            if len(servers) > KEPT:
                self.deleted.add(servers[0])
                await nova.delete(servers.popleft(), seconds=SECONDS)


@dataclass
class TakenRegion:
    """A region behind a proxy, with its former Placement and a berth."""

    region: NovaRegion
    proxy: SwitchedProxy
    former: str
    berth: BerthBeside
    clients: BootingClients
    steps: dict[str, list[float]] = field(default_factory=dict)  # seconds

    @asynccontextmanager
    async def step(self, name: str) -> AsyncIterator[None]:
        """Measure a step, which must not be longer than a minute, and wait for boots after it."""
        began = time.monotonic()
        yield
        self.steps.setdefault(name, []).append(time.monotonic() - began)
        print(f"\n{name}: {self.steps[name][-1]:.1f} s after {len(self.clients.seconds)} boots", end="")
        assert self.steps[name][-1] < STEP_SECONDS, (name, self.steps)
        booted = len(self.clients.seconds)
        await wait_until(lambda: self._have_booted(booted + 2 * CLIENTS), f"boots after {name}", SECONDS)

    async def _have_booted(self, number: int) -> bool:
        return len(self.clients.seconds) >= number

    async def switch(self, source: str, target: str) -> None:
        """Copy for the last time while requests wait, then let the other Placement answer them."""
        async with self.proxy.held():
            output = await self.berth.copy(source, target, "--verify", "--prune")
            assert "verified: both sides hold the same" in output, output
            self.proxy.switch(target)

    async def has_scheduled_earlier_boots(self) -> None:
        """Wait until no server is left in the status BUILD that is in it now: their calls were answered."""

        async def building() -> set[str]:
            return {
                server["id"] for server in await self.region.nova.servers() if server["status"] == "BUILD"
            }

        earlier = await building()

        async def is_none_left() -> bool:
            return not earlier & await building()

        await wait_until(is_none_left, "earlier boots have hosts", STEP_SECONDS)

    async def compares(self) -> bool:
        """Return whether shadow mode has compared a request of Nova."""
        report = await self.berth.value("openstack", "report")
        return bool(report.get("same") or report.get("different"))

    async def is_right(self) -> None:
        """Check, while no client works, that every accepted server is active on one host, with exactly its
        allocations at the Placement in use, unless it was deleted."""
        clients = self.clients
        found = {server["id"]: server["status"] for server in await self.region.nova.servers()}
        assert found == dict.fromkeys(set(clients.accepted) - clients.deleted, "ACTIVE")
        await check_allocations(self.region)
        assert spawns(self.region) == Counter(clients.accepted), "each server was started once"


@asynccontextmanager
async def former_placement(foundation: Foundation) -> AsyncIterator[OpenStackPlacement]:
    access = ApiAccess(keystone=foundation.placement_user)
    directory, url = foundation.directory / "placement", foundation.openstack_database_url
    server = OpenStackPlacement(directory, url, access, python=nova_python())
    async with serving(server):
        yield server


@asynccontextmanager
async def a_region(directory: Path | None = None) -> AsyncIterator[TakenRegion]:
    proxies: list[tuple[SwitchedProxy, str]] = []

    @asynccontextmanager
    async def placement(foundation: Foundation) -> AsyncIterator[str]:
        async with former_placement(foundation) as server, switched_proxy(server.base_url) as proxy:
            await register(foundation.keystone.admin, proxy.url)
            proxies.append((proxy, server.base_url))
            yield proxy.url

    options = NovaOptions(hosts=2, capacity=HostCapacity(vcpus=16, memory_mb=32768, disk_gb=200))
    async with (
        running_nova(options, placement=placement, directory=directory) as region,
        berth_of(region) as berth,
    ):
        [(proxy, former)] = proxies
        yield TakenRegion(region, proxy, former, berth, BootingClients(region))


@pytest_asyncio.fixture(loop_scope="module")
async def taken() -> AsyncIterator[TakenRegion]:
    installed(find_binaries)
    installed(find_nova)
    async with a_region() as found:
        yield found


async def test_berth_takes_over_and_leaves_again_twice_under_continuous_boots(taken: TakenRegion) -> None:
    clients = taken.clients
    for _ in range(2):
        async with AsyncExitStack() as scheduling:
            async with clients.working():
                await take_over(taken, scheduling)
            await taken.is_right()
            report = await audit(berth_database(taken.region.foundation))
            assert report["clean"], report["breaches"]
            async with clients.working():
                await leave(taken, scheduling)
        await taken.is_right()
    rounded = {name: [round(seconds, 1) for seconds in found] for name, found in taken.steps.items()}
    print(f"\n{len(clients.accepted)} boots, the slowest {max(clients.seconds):.1f} s; steps: {rounded}")


async def take_over(taken: TakenRegion, scheduling: AsyncExitStack) -> None:
    region = taken.region
    settings = taken.berth.worker_settings
    await taken.berth.passes("import", taken.former)
    async with taken.step("import"):
        await taken.berth.copy(taken.former, taken.berth.url, "--verify")  # requests in progress may differ
    async with berth_scheduling(region, settings, ("scheduler", "nova-shadow")), taken.step("shadow"):
        await wait_until(taken.compares, "shadow mode has compared a request", SECONDS)
    # The servers that were booted after the import are not at berth yet; the step copies them.
    await taken.berth.passes("placement", taken.berth.url)
    async with taken.step("Placement endpoint"):
        await taken.switch(taken.former, taken.berth.url)
    await taken.berth.passes("placement", taken.berth.url, "--done")
    await taken.berth.passes("scheduler", taken.berth.url)
    async with taken.step("scheduler"):
        await scheduling.enter_async_context(berth_scheduling(region, settings))
        await taken.has_scheduled_earlier_boots()
        await region.processes.stop("scheduler")
    # The stopped nova-scheduler counts as up for service_down_time.
    await taken.berth.passes("scheduler", taken.berth.url, "--done", known={"nova-scheduler"})


async def leave(taken: TakenRegion, scheduling: AsyncExitStack) -> None:
    region = taken.region
    async with taken.step("scheduler back"):  # a nova-scheduler runs before the bridge stops
        await region.processes.restart("scheduler")
        await region.wait_for_consumers("", ["scheduler"])
        await scheduling.aclose()
    async with taken.step("Placement endpoint back"):
        await taken.switch(taken.berth.url, taken.former)
    await taken.berth.passes("placement", taken.former, "--done")

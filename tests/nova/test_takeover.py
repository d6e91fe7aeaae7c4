"""berth takes over a running Nova region step by step and leaves it again, without a lost or doubled server.

The steps are those of docs/howto/nova.md. A proxy is in front of Placement, as in most clouds. It holds
requests while the contents are copied for the last time.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from deploy.nova import HostCapacity, NovaOptions, NovaRegion, find_nova, running_nova
from deploy.nova_configuration import API_DATABASE
from deploy.nova_placements import Foundation, register, serving
from deploy.nova_processes import find_nova as nova_python
from deploy.nova_scheduling import _make_virtual_host, berth_scheduling, bus_url
from deploy.placement import ApiAccess, BerthPlacement, OpenStackPlacement
from deploy.servers import find_binaries
from tests.nova.checks import SECONDS, audit, check_allocations
from tests.support.servers import installed
from tests.support.switched_proxy import SwitchedProxy, switched_proxy

pytestmark = [pytest.mark.nova, pytest.mark.services, pytest.mark.asyncio(loop_scope="module")]


@dataclass
class TakenRegion:
    """A region behind a proxy, with its former Placement and a berth."""

    region: NovaRegion
    proxy: SwitchedProxy
    former: str
    berth: str
    servers: list[str] = field(default_factory=list)

    async def command(self, *words: str) -> tuple[int, str]:
        """Run a command of berth with the settings of the take-over and a token of the administrator."""
        token = self.region.directory / "token"
        token.write_text(await self.region.nova.http.token())
        user = self.region.users["placement"].options
        known = {name: value for name, value in os.environ.items() if not name.startswith(("BERTH_", "OS_"))}
        settings = {
            **{f"OS_{name.upper()}": value for name, value in user.items()},
            "BERTH_PLACEMENT_AUTH": "keystone", "BERTH_PLACEMENT_CLOUD": "envvars",
            "BERTH_NOVA_DATABASE_URL": self.region.database_urls[API_DATABASE],
            "BERTH_NOVA_AMQP_URL": self.region.bus_urls[""],
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "berth", *words, "--token-file", str(token), env=known | settings,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode()

    async def check(self, step: str, url: str, *words: str) -> list[dict[str, Any]]:
        """Return the errors and warnings before a step, except that the user of the databases may write."""
        _, output = await self.command("nova", "check", "--step", step, "--url", url, "--json", *words)
        findings = json.loads(output.splitlines()[-1])["findings"]
        return [
            finding
            for finding in findings
            if finding["level"] != "note" and finding["says"] != "berth's user may write."
        ]

    async def copy(self, source: str, target: str, *words: str) -> None:
        code, output = await self.command(
            "import",
            "placement",
            "--url",
            source,
            "--to",
            target,
            "--verify",
            *words,
            "--to-token-file",
            str(self.region.directory / "token"),
        )
        assert code == 0 and "both sides hold the same" in output, output

    async def switch(self, source: str, target: str) -> None:
        """Copy for the last time while requests wait, then let the other Placement answer them."""
        async with self.proxy.held():
            booting = asyncio.create_task(self.boot())  # it waits
            deleting = asyncio.create_task(self.region.nova.delete(self.servers.pop(0), seconds=SECONDS))
            await self.copy(source, target, "--prune")
            self.proxy.switch(target)
        await asyncio.gather(booting, deleting)
        await self.is_right()

    async def boot(self) -> None:
        server = await self.region.nova.boot()
        await self.region.nova.active(server, seconds=SECONDS)
        self.servers.append(server)

    async def is_right(self) -> None:
        """Check that each server is active and holds its allocations once, at the Placement in use."""
        found = {server["id"]: server["status"] for server in await self.region.nova.servers()}
        assert found == dict.fromkeys(self.servers, "ACTIVE")
        await check_allocations(self.region)


@asynccontextmanager
async def former_placement(foundation: Foundation) -> AsyncIterator[OpenStackPlacement]:
    access = ApiAccess(keystone=foundation.placement_user)
    directory, url = foundation.directory / "placement", foundation.openstack_database_url
    server = OpenStackPlacement(directory, url, access, python=nova_python())
    async with serving(server):
        yield server


def berth_database(foundation: Foundation) -> str:
    return f"{foundation.database_url.rpartition('/')[0]}/berth_placement"


@asynccontextmanager
async def berth_of(region: NovaRegion) -> AsyncIterator[str]:
    """Run berth's Placement with an empty database, in parallel to the former one."""
    foundation = region.foundation
    await asyncio.to_thread(_make_virtual_host, foundation.rabbitmq, "berth")
    connection = await asyncpg.connect(foundation.database_url.replace("+asyncpg", ""))
    await connection.execute("CREATE DATABASE berth_placement")
    await connection.close()
    access = ApiAccess(keystone=foundation.placement_user)
    url = berth_database(foundation)
    server = BerthPlacement(foundation.directory / "berth", url, access, bus_url(foundation))
    async with serving(server):
        yield server.base_url


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
        yield TakenRegion(region, proxy, former, berth)


@pytest_asyncio.fixture(loop_scope="module")
async def taken() -> AsyncIterator[TakenRegion]:
    installed(find_binaries)
    installed(find_nova)
    async with a_region() as found:
        yield found


async def test_berth_takes_over_and_leaves_again(taken: TakenRegion) -> None:
    region = taken.region
    for _ in range(3):
        await taken.boot()

    # Import while the former Placement is in use.
    assert await taken.check("import", taken.former) == []
    await taken.copy(taken.former, taken.berth)
    await taken.boot()
    assert [finding["about"] for finding in await taken.check("placement", taken.berth)] == ["allocations"]

    # The Placement endpoint.
    await taken.switch(taken.former, taken.berth)
    assert await taken.check("placement", taken.berth, "--done") == []

    # The scheduler: both for a moment, then berth alone.
    assert await taken.check("scheduler", taken.berth) == []
    database = berth_database(region.foundation)
    async with berth_scheduling(region, {"database_url": database.replace("+asyncpg", "")}):
        await region.processes.stop("scheduler")
        for _ in range(3):
            await taken.boot()
        await taken.is_right()
        report = await audit(database)
        assert report["clean"], report["breaches"]

        # Back: a nova-scheduler runs before the bridge stops.
        await region.processes.restart("scheduler")
        await region.wait_for_consumers("", ["scheduler"])
    await taken.boot()

    # The Placement endpoint back; what happened since is carried back.
    await taken.switch(taken.berth, taken.former)
    assert await taken.check("placement", taken.former, "--done") == []
    await taken.boot()
    await taken.is_right()

"""berth schedules for a real Nova, without a nova-scheduler, also under crashes and races."""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aio_pika
import pytest
import pytest_asyncio

from deploy.nova import HostCapacity, NovaOptions, NovaRegion, find_nova, running_nova
from deploy.nova_client import wait_until
from deploy.nova_scheduling import BerthOnRabbitMQ, BerthWorker, berth_scheduling, bus_url
from deploy.servers import find_binaries
from nova_bridge.core.notifications import notification_of
from tests.nova.checks import SECONDS, check_allocations
from tests.support.servers import installed

pytestmark = [pytest.mark.nova, pytest.mark.services, pytest.mark.asyncio(loop_scope="module")]

BOOTS = 200
ENDS = ("ACTIVE", "ERROR")


@dataclass
class ScheduledRegion:
    region: NovaRegion
    berth: BerthOnRabbitMQ
    workers: dict[str, BerthWorker]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scheduled() -> AsyncIterator[ScheduledRegion]:
    installed(find_binaries)
    installed(find_nova)
    berth = BerthOnRabbitMQ()
    capacity = HostCapacity(vcpus=64, memory_mb=65536, disk_gb=1000)
    options = NovaOptions(hosts=4, has_scheduler=False, capacity=capacity)
    async with (
        running_nova(options, placement=berth.placement) as region,
        berth_scheduling(region, {"nova_notification_format": "versioned"}) as workers,
    ):
        yield ScheduledRegion(region, berth, workers)


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def _nothing_is_left(scheduled: ScheduledRegion) -> AsyncIterator[None]:
    yield
    nova = scheduled.region.nova
    await nova.delete(*[server["id"] for server in await nova.servers()], seconds=SECONDS)
    await check_allocations(scheduled.region)


async def all_ended(region: NovaRegion, servers: list[str]) -> Counter[str]:
    """Wait until every server is active or in error, and return how many are which."""
    found: Counter[str] = Counter()

    async def have_ended() -> bool:
        status = {server["id"]: server["status"] for server in await region.nova.servers()}
        found.clear()
        found.update(status.get(server, "deleted") for server in servers)
        return set(found) <= set(ENDS)

    await wait_until(have_ended, f"{len(servers)} servers have ended", 8 * SECONDS)
    return found


async def test_concurrent_boots_keep_the_policy_of_their_group(scheduled: ScheduledRegion) -> None:
    nova = scheduled.region.nova
    group = await nova.create_server_group("apart", "anti-affinity")
    servers = await asyncio.gather(*(nova.boot(hints={"group": group}) for _ in range(6)))
    found = await all_ended(scheduled.region, list(servers))
    assert found == {"ACTIVE": 4, "ERROR": 2}
    hosts = [await nova.host(server) for server in servers]
    assert sorted(filter(None, hosts)) == sorted(scheduled.region.hosts)


@pytest.mark.parametrize("killed", ["nova", "scheduler", "placement"])
async def test_every_boot_ends_when_a_worker_is_killed(scheduled: ScheduledRegion, killed: str) -> None:
    region = scheduled.region
    servers: list[str] = []

    async def boot() -> None:
        servers.append(await region.nova.boot())

    async def kill() -> None:
        await wait_until(lambda: _has(len(servers) >= BOOTS // 4), "a quarter is requested", SECONDS)
        if killed == "placement":
            await asyncio.to_thread(scheduled.berth.server.kill)
            await asyncio.to_thread(scheduled.berth.server.start)
        else:
            await scheduled.workers[killed].stop(signal.SIGKILL)
            await scheduled.workers[killed].start()

    await asyncio.gather(kill(), *(boot() for _ in range(BOOTS)))
    found = await all_ended(region, servers)
    assert found["ACTIVE"] + found["ERROR"] == BOOTS
    if killed == "placement":  # nova-compute asks Placement, too: then a build may fail
        held = {consumer for host in (await region.allocations()).values() for consumer in host}
        assert held <= set(servers)
        return
    assert found["ERROR"] == 0, region.problems()[-5:]
    await check_allocations(region)


async def _has(condition: bool) -> bool:
    return condition


async def test_the_last_decision_about_a_server_is_explained(scheduled: ScheduledRegion) -> None:
    nova, foundation = scheduled.region.nova, scheduled.region.foundation
    server = await nova.boot()
    [found] = await nova.active(server, seconds=SECONDS)
    host = found["OS-EXT-SRV-ATTR:host"]
    where = {
        "BERTH_AMQP_URL": bus_url(foundation),
        "BERTH_DATABASE_URL": foundation.database_url.replace("+asyncpg", ""),
    }

    async def is_explained() -> bool:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "berth", "why", server, "--json", stdout=asyncio.subprocess.PIPE,
            env=os.environ | where,
        )  # fmt: skip
        output, _ = await process.communicate()
        decided = [json.loads(line) for line in output.splitlines()]
        return any((value.get("placed") or {}).get("chosen", {}).get("host") == host for value in decided)

    await wait_until(is_explained, "the decision is stored", SECONDS)


async def test_consumers_of_notifications_receive_those_of_the_scheduler(scheduled: ScheduledRegion) -> None:
    region = scheduled.region
    async with await aio_pika.connect(region.bus_urls[""]) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind("nova", "versioned_notifications.info")
        server = await region.nova.boot()
        events: list[str] = []
        async with asyncio.timeout(SECONDS), queue.iterator(no_ack=True) as messages:
            async for message in messages:
                found = notification_of(message.body)
                if found is not None and found.instance == server:
                    events.append(found.event)
                if "used" in events:  # by nova-compute
                    break
    assert events == ["asked", "selected", "used"]

"""berth schedules for a real Nova, without a nova-scheduler, also under crashes and races."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator

import aio_pika
import pytest
import pytest_asyncio

from deploy.nova_client import wait_until
from deploy.nova_scheduling import bus_url
from features.nova.core.notifications import notification_of
from features.nova.tests.real.checks import SECONDS, check_allocations
from features.nova.tests.real.scheduled_region import ScheduledRegion, a_scheduled_region, all_ended

pytestmark = [pytest.mark.nova, pytest.mark.services, pytest.mark.asyncio(loop_scope="module")]

BOOTS = 200
RESTARTED = 60
OUTAGE_SECONDS = 30.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scheduled() -> AsyncIterator[ScheduledRegion]:
    async with a_scheduled_region() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def _nothing_is_left(scheduled: ScheduledRegion) -> AsyncIterator[None]:
    yield
    nova = scheduled.region.nova
    await nova.delete(*[server["id"] for server in await nova.servers()], seconds=SECONDS)
    await check_allocations(scheduled.region)


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


async def test_no_boot_hangs_when_a_conductor_is_restarted(scheduled: ScheduledRegion) -> None:
    # Its processes must not share the connection to Placement that it opens before it forks them.
    region = scheduled.region
    servers: list[str] = []

    async def boot() -> None:
        servers.append(await region.nova.boot())

    await asyncio.gather(*(boot() for _ in range(RESTARTED // 2)))
    assert await all_ended(region, servers) == {"ACTIVE": RESTARTED // 2}
    await region.processes.stop("conductor")  # Nova loses the builds in progress at a conductor
    booting = asyncio.gather(*(boot() for _ in range(RESTARTED // 2)))
    await region.processes.restart("conductor")
    await booting
    assert await all_ended(region, servers) == {"ACTIVE": RESTARTED}


async def test_no_boot_fails_while_no_bridge_runs(scheduled: ScheduledRegion) -> None:
    region, bridge = scheduled.region, scheduled.workers["nova"]
    servers: list[str] = []

    async def boot() -> None:
        servers.append(await region.nova.boot())

    async def stop() -> None:
        await wait_until(lambda: _has(len(servers) >= RESTARTED // 3), "a third is requested", SECONDS)
        await bridge.stop()
        await asyncio.sleep(OUTAGE_SECONDS)
        await bridge.start()

    await asyncio.gather(stop(), *(boot() for _ in range(RESTARTED)))
    assert await all_ended(region, servers) == {"ACTIVE": RESTARTED}, region.problems()[-5:]
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

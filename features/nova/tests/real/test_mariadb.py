"""berth schedules for a real Nova whose databases are in MariaDB, as those of most clouds are."""

import asyncio
import signal

import pytest

from deploy.mariadb import find_mariadb
from features.nova.tests.real.checks import SECONDS, check_allocations
from features.nova.tests.real.scheduled_region import a_scheduled_region, all_ended
from tests.support.servers import installed

pytestmark = [pytest.mark.nova, pytest.mark.services]

BOOTS = 20


async def test_every_boot_gets_a_host_also_when_the_bridge_is_killed() -> None:
    installed(find_mariadb)
    async with a_scheduled_region(has_mariadb=True) as scheduled:
        region, bridge = scheduled.region, scheduled.workers["nova"]
        await region.nova.create_aggregate("rack", "az1", region.hosts[0])
        servers = await asyncio.gather(*(region.nova.boot() for _ in range(BOOTS)))
        await bridge.stop(signal.SIGKILL)
        await bridge.start()
        assert await all_ended(region, servers) == {"ACTIVE": BOOTS}, region.problems()[-5:]
        in_zone = await region.nova.boot(availability_zone="az1")
        [found] = await region.nova.active(in_zone, seconds=SECONDS)
        assert found["OS-EXT-SRV-ATTR:host"] == region.hosts[0]
        await check_allocations(region)
        await region.nova.delete(in_zone, *servers, seconds=SECONDS)

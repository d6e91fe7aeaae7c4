"""An embedded berth in which requests wait for room."""

from collections.abc import AsyncIterator

import pytest

from berth.kit import BootOptions, boot_request
from bus import topics
from bus.queries import FindWaiting
from features.what_if.messages import WHAT_IF, WhatIf
from tests.support.living_berth import LivingBerth, Opened
from tests.support.waiting import until

LARGE = ("--vcpus", "1", "--memory-mb", "70000", "--disk-gb", "1")
HOSTS = [f"c1-host0000{number}" for number in range(1, 6)]


@pytest.fixture
async def berth(opened: Opened) -> AsyncIterator[LivingBerth]:
    """Five hosts of 130,560 MB with four instances of 24,000 MB each, but three on the second."""
    async with opened("c1", simulator={"hosts": 5}) as berth:
        for host, count in zip(HOSTS, (4, 3, 4, 4, 4), strict=True):
            await berth("boot", "--memory-mb", "24000", "--count", str(count), "--host", host, "--wait")
        await until(lambda: _all_idle(berth))
        yield berth


async def _all_idle(berth: LivingBerth, memory_mb: int = 30_000, hosts: int = len(HOSTS)) -> bool:
    """Return whether each host is usable: `io_ops` refuses a host with many builds in its last heartbeat."""
    small = WhatIf(request=boot_request(BootOptions(memory_mb=memory_mb)), count=hosts)
    return (await berth.bus.asker(WHAT_IF)(small)).fits


async def waits(berth: LivingBerth) -> bool:
    return bool((await berth.bus.asker(topics.WAITING)(FindWaiting())).waiting)

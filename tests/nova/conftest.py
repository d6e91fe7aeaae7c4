"""A real Nova for each file of tests: with OpenStack Placement, and with berth in its place."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from deploy.nova import (
    HostCapacity,
    NovaOptions,
    NovaRegion,
    berth_placement,
    find_nova,
    openstack_placement,
    running_nova,
)
from deploy.servers import find_binaries
from tests.support.servers import installed

PLACEMENTS = {"openstack": openstack_placement, "berth": berth_placement}
HOSTS = NovaOptions(hosts=4, capacity=HostCapacity(vcpus=16, memory_mb=32768, disk_gb=200))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=PLACEMENTS)
async def region(request: pytest.FixtureRequest) -> AsyncIterator[NovaRegion]:
    installed(find_binaries)
    installed(find_nova)
    async with running_nova(HOSTS, placement=PLACEMENTS[request.param]) as running:
        yield running

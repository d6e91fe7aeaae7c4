"""A real Nova for each file of tests: with OpenStack Placement and nova-scheduler, with berth as Placement,
and with berth as both.
"""

from collections.abc import AsyncIterator
from dataclasses import replace

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
from deploy.nova_scheduling import BerthOnRabbitMQ, berth_scheduling
from deploy.servers import find_binaries
from tests.support.servers import installed

HOSTS = NovaOptions(hosts=4, capacity=HostCapacity(vcpus=16, memory_mb=32768, disk_gb=200))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["openstack", "berth", "berth-schedules"])
async def region(request: pytest.FixtureRequest) -> AsyncIterator[NovaRegion]:
    installed(find_binaries)
    installed(find_nova)
    if request.param == "berth-schedules":
        options = replace(HOSTS, has_scheduler=False)
        berth = BerthOnRabbitMQ()
        async with running_nova(options, placement=berth.placement) as running, berth_scheduling(running):
            yield running
        return
    placement = openstack_placement if request.param == "openstack" else berth_placement
    async with running_nova(HOSTS, placement=placement) as running:
        yield running

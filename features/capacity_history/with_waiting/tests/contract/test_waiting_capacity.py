"""Samples of the capacity for which requests wait."""

import asyncio
from typing import Any

from msgspec.structs import replace

from bus.reports import Inventory
from features.capacity_history.history import capacity_samples
from features.capacity_history.messages import CAPACITY, CapacitySample, FindCapacity
from tests.support.placement_builders import a_report
from tests.support.scheduler_builders import SMALL
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting_world import waiting_world


@in_virtual_time
async def test_a_sample_has_the_amounts_and_instances_that_requests_wait_for() -> None:
    large = replace(SMALL, name="large", vcpus=6, memory_mb=5000, disk_gb=1)
    inventories = {name: Inventory(total=4000) for name in ("MEMORY_MB", "DISK_GB")}
    async with waiting_world() as world:
        report = a_report(1, inventories={"VCPU": Inventory(total=4), **inventories})
        await world.say(replace(report, zone="z1"))
        await asyncio.sleep(1.0)
        await world.ask(1, flavor=large, zone="z1", wait="2h")
        await asyncio.sleep(400.0)
        ask = world.bus.asker(CAPACITY)

        async def latest(**query: Any) -> CapacitySample:
            return (await capacity_samples(ask, FindCapacity(limit=1, zone="z1", **query)))[-1]

        amounts = await latest(name="VCPU")
        assert (amounts.capacity, amounts.waiting) == (4, 6)
        instances = await latest(kind="flavor", name="large")
        assert (instances.free, instances.waiting) == (0, 1)

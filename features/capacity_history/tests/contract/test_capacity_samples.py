"""Samples of the capacity: what schedulers measure, and how samples are stored, merged and found."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from berth.kit.testing import packages
from bus.host_health import DISABLED
from bus.reports import Inventory
from bus.sql.database import Database
from bus.sql.migrations import migrate
from features.capacity_history import store as capacity
from features.capacity_history.history import capacity_samples
from features.capacity_history.messages import CAPACITY, CapacitySample, FindCapacity
from tests.support.placement_builders import a_report
from tests.support.scheduler_builders import SMALL
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting_world import waiting_world

DAY = 86400


def inventories(vcpus: int, memory_mb: int) -> dict[str, Inventory]:
    amounts = {"VCPU": vcpus, "MEMORY_MB": memory_mb, "DISK_GB": 100}
    return {name: Inventory(total=total, max_unit=total) for name, total in amounts.items()}


@in_virtual_time
async def test_a_sample_has_used_free_and_stranded_amounts_by_zone() -> None:
    flavor = replace(SMALL, name="small", vcpus=2, memory_mb=1000, disk_gb=1)
    async with waiting_world() as world:
        hosts = ((1, 8, 2000, "z1", ()), (2, 4, 9000, "z2", ()), (3, 8, 8000, "z2", (DISABLED,)))
        for number, vcpus, memory, zone, traits in hosts:
            report = a_report(number, inventories=inventories(vcpus, memory), traits=traits)
            await world.say(replace(report, zone=zone))
        await asyncio.sleep(1.0)
        await world.ask(1, flavor=flavor, zone="z1", wait="")
        await world.until(1, world.placed)
        large = replace(flavor, vcpus=6, memory_mb=5000, name="large")
        await world.ask(2, flavor=large, zone="z2", wait="")
        await asyncio.sleep(400.0)
        ask = world.bus.asker(CAPACITY)

        async def latest(**query: Any) -> CapacitySample:
            found = await capacity_samples(ask, FindCapacity(limit=1, **query))  # page by page
            return found[-1]

        one, two = [await latest(name="VCPU", zone=zone) for zone in ("z1", "z2")]
        assert (one.capacity, one.used, one.free) == (8, 2, 6)
        assert one.stranded == 4  # memory for one more instance of two processors
        assert (two.capacity, two.used, two.stranded, two.waiting) == (12, 0, 8, 0)
        both = await latest(name="VCPU")
        assert (both.capacity, both.used, both.free, both.stranded) == (20, 2, 18, 12)
        fits = [(await latest(kind="flavor", name="small", zone=zone)).free for zone in ("z1", "z2")]
        assert fits == [1, 2]
        assert (await latest(kind="flavor", name="large", zone="z2")).free == 0


@pytest.fixture
async def store(database: Database) -> Database:
    await migrate(database, *packages("scheduler"))
    return database


async def test_old_samples_become_means_of_hours_and_days(store: Database) -> None:
    now = 1_700_000_000 // DAY * DAY + 5 * DAY
    begin = now - 65 * DAY
    async with store.write() as tx:
        times = range(begin, now, 1800)
        hours = [float((at - begin) // 3600) for at in times]
        await capacity.add(
            tx,
            [
                CapacitySample(at, "class", "VCPU", "z1", 100.0, hour)
                for at, hour in zip(times, hours, strict=True)
            ],
        )
        await capacity.add(
            tx, [CapacitySample(now - 1800, "class", "VCPU", "z1", 1.0)]
        )  # a sample of another scheduler
        await capacity.merge(tx, float(now))
        await capacity.merge(tx, float(now))
        found = await capacity.find(tx, FindCapacity())
    spans = {second.at - first.at for first, second in zip(found.samples, found.samples[1:], strict=False)}
    assert spans == {1800, 3600, DAY}
    assert [each.at for each in found.samples] == sorted({each.at for each in found.samples})
    first, hour = found.samples[0], next(each for each in found.samples if each.at == now - 10 * DAY)
    assert (first.at, first.capacity, first.used) == (begin, 100.0, 11.5)
    assert hour.used == 55 * 24

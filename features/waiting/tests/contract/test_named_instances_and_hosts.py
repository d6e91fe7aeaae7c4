"""Waiting requests that name other instances, or hosts."""

import asyncio
from typing import Any

import msgspec
import pytest

from bus.reports import Inventory
from bus.requests import Flavor, Hints
from tests.support.ids import uid
from tests.support.placement_builders import a_report
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting_world import WaitingWorld, waiting_world

SMALL, LARGE = Flavor(name="small", vcpus=1), Flavor(name="large", vcpus=4)


@in_virtual_time
async def test_a_new_instance_wakes_requests_with_same_host() -> None:
    async with waiting_world() as world:
        for number in (1, 2):
            await world.report(number, {"VCPU": Inventory(total=8)})
        await world.ask(2, flavor=SMALL, hints=Hints(same_host=(uid(1000, "b"),)))
        await asyncio.sleep(5.0)
        assert world.placed == []
        await world.ask(1, flavor=SMALL, wait="")
        await world.until(2, world.placed)
        assert world.placed[1][0] - world.placed[0][0] < 1.2
        assert len(set(world.hosts())) == 1


async def called(world: WaitingWorld, name: str, sequence: int, **given: Any) -> None:
    """Report host 1 under another name."""
    await world.bus.publish(msgspec.structs.replace(a_report(1, sequence=sequence, **given), host=name))


@in_virtual_time
async def test_a_request_for_a_renamed_host_waits_for_the_name(caplog: pytest.LogCaptureFixture) -> None:
    async with waiting_world() as world:
        await called(world, "east-1", 1, inventories={"VCPU": Inventory(total=1)})
        await asyncio.sleep(0.5)
        await world.ask(1, flavor=LARGE, forced_host="east-1")
        await world.ask(2)
        await asyncio.sleep(2.0)
        await called(world, "west-1", 2, inventories={"VCPU": Inventory(total=8)})
        await asyncio.sleep(2.0)
        await world.node(50)
        await world.until(1, world.placed)
        assert world.requests() == [uid(2, "a")]
        await called(world, "east-1", 3, inventories={"VCPU": Inventory(total=8)})
        await world.until(2, world.placed)
        assert world.requests()[1] == uid(1, "a")
        assert [record.message for record in caplog.records if record.exc_info] == []

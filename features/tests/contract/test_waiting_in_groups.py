"""Waiting requests of members of server groups."""

import asyncio

from bus.messages import BuildPlaced
from bus.reports import Inventory
from bus.requests import Flavor
from features.groups.messages import EDIT_GROUP, DropGroup, GroupEditRequested, MakeGroup
from features.groups.tests.support.group_parts import in_group
from tests.support.ids import uid
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting_world import WaitingWorld, waiting_world

GROUP = uid(1, "9")
SMALL, LARGE = Flavor(name="small", vcpus=1), Flavor(name="large", vcpus=4)


async def a_member(world: WaitingWorld) -> BuildPlaced:
    make = MakeGroup(group=GROUP, name="together", policy="affinity")
    await world.bus.asker(EDIT_GROUP)(GroupEditRequested(edit=make))
    await world.report(1, {"VCPU": Inventory(total=2)})
    await asyncio.sleep(0.2)
    await world.ask(1, flavor=SMALL, parts=in_group(GROUP), wait="")
    await world.until(1, world.placed)
    await world.report(2, {"VCPU": Inventory(total=8)})
    await asyncio.sleep(0.2)
    return world.placed.pop()[1]


@in_virtual_time
async def test_a_request_waiting_for_a_deleted_group_ends() -> None:
    async with waiting_world() as world:
        await a_member(world)
        await world.ask(2, flavor=LARGE, parts=in_group(GROUP))
        await asyncio.sleep(5.0)
        assert world.unplaceable == []
        before = world.clock.monotonic()
        drop = GroupEditRequested(edit=DropGroup(group=GROUP, force=True))
        await world.bus.asker(EDIT_GROUP)(drop)
        await world.until(1, world.unplaceable)
        assert world.clock.monotonic() - before < 1.5
        assert "there is no server group" in world.unplaceable[0].reason
        assert (await world.waiting()).count == 0

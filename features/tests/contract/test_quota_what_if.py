"""What-if answers about requests that wait for a quota."""

import asyncio

import pytest

from features.tests.support.quota_world import SOON, a_world, boot
from features.what_if.messages import WHAT_IF, WhatIf
from tests.support.scheduler_builders import SMALL, a_request
from tests.support.virtual_time import in_virtual_time


@pytest.mark.parametrize(("at_least", "placed"), [(1, 4), (4, 4), (5, 0)])
@pytest.mark.parametrize("limits", [{"VCPU": 5}, {"instances": 5}, {"VCPU": 50, "instances": 5}])
@in_virtual_time
async def test_as_many_instances_as_the_quota_permits_are_placed_if_enough(
    limits: dict[str, int], at_least: int, placed: int
) -> None:
    async with a_world(**limits) as world:
        await boot(world, 1)
        await world.until(1, world.placed)
        request = a_request(2, flavor=SMALL, project="p1", instances=6, at_least=at_least)
        asked = await world.bus.asker(WHAT_IF)(WhatIf(request=request))
        assert (asked.fits, sum(there.instances for there in asked.placed)) == (placed > 0, placed)
        await boot(world, 2, wait="", instances=6, at_least=at_least)
        await world.until(1, world.unplaceable)
        await asyncio.sleep(SOON)
        assert len(world.placed) == 1 + placed
        [end] = world.unplaceable
        assert end.decision.code == "quota" and len(end.instances) == 6 - placed
        used = f"{1 + placed} used, {6 - placed} more asked"
        assert end.reason.endswith(used)

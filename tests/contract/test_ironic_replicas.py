"""Several replicas follow one Ironic, one of them with notifications; and a clock that jumps."""

import pytest

from tests.support.fake_ironic import fault
from tests.support.swept_ironic import FollowedWorld, followed
from tests.support.virtual_time import in_virtual_time

SOON = 1.0  # virtual seconds
HOUR = 3600.0


async def with_a_node(world: FollowedWorld) -> None:
    world.ironic.now = int(world.time)
    world.ironic.have(1)


@in_virtual_time
async def test_changes_reported_by_another_replica_are_checked() -> None:
    async with followed() as world:
        await with_a_node(world)
        a, b = await world.start(), await world.start()
        for heard_by, maintenance in ((a, True), (b, False), (a, True), (b, False)):
            await world.change(heard_by, 1, "maintenance_set.end", maintenance=maintenance)
            assert await world.takes(1, open=not maintenance) < SOON


@in_virtual_time
async def test_a_replica_that_takes_over_reads_the_reported_state() -> None:
    async with followed() as world:
        await with_a_node(world)
        a, b = await world.start(), await world.start()
        await world.change(a, 1, "maintenance_set.end", maintenance=True)
        await world.takes(1, open=False)
        world.hold_changes_back()
        await world.change(b, 1, "maintenance_set.end", maintenance=False)
        await world.takes(1, open=True)
        await world.change(a, 1, "maintenance_set.end", maintenance=True)
        await world.tell_changes()
        assert await world.takes(1, open=False) < SOON


@in_virtual_time
async def test_a_reconnected_replica_reads_the_reported_state_again() -> None:
    async with followed() as world:
        await with_a_node(world)
        a = await world.start()
        await world.change(a, 1, "maintenance_set.end", maintenance=True)
        await world.takes(1, open=False)
        world.reopen_by_hand(1)
        world.ironic.proxy = lambda request: fault(503, "away")
        a.was_interrupted()
        await world.change(a, 1, "maintenance_set.end", maintenance=True)
        assert await world.takes(1, open=False) < SOON


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["forward", "back"])
@pytest.mark.parametrize("restarted", [False, True], ids=["goes on", "is started again"])
@in_virtual_time
async def test_notifications_after_a_clock_jump_take_effect_immediately(restarted: bool, jump: float) -> None:
    async with followed() as world:
        await with_a_node(world)
        world.ahead = max(0.0, -jump)
        a = await world.start()
        for maintenance in (True, False):
            await world.change(a, 1, "maintenance_set.end", maintenance=maintenance)
            assert await world.takes(1, open=not maintenance) < SOON
        world.ahead += jump
        if restarted:
            await world.kill_all()
            a = await world.start()
        for maintenance in (True, False, True):
            await world.change(a, 1, "maintenance_set.end", maintenance=maintenance)
            assert await world.takes(1, open=not maintenance) < SOON
        world.ironic.have(2)
        await world.change(a, 2, "provision_set.end", maintenance=False)
        assert await world.takes(2, open=True) < SOON


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["forward", "back"])
@in_virtual_time
async def test_changes_after_a_clock_jump_are_found_by_the_next_sweep(jump: float) -> None:
    async with followed(sweep_seconds=60.0) as world:
        await with_a_node(world)
        world.ahead = max(0.0, -jump)
        a = await world.start()
        await world.change(a, 1, "update.end", name="told")
        world.ahead += jump
        for maintenance in (True, False):
            await world.change(None, 1, "", maintenance=maintenance)
            assert await world.takes(1, open=not maintenance) < 70.0

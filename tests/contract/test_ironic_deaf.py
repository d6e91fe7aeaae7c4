"""While Ironic's broker is unreachable, sweeps run often, and once more when it returns."""

import pytest

from tests.support.fake_ironic import FakeIronic
from tests.support.swept_ironic import FollowedWorld, SaidByHand, followed
from tests.support.virtual_time import in_virtual_time


async def with_nodes(world: FollowedWorld) -> SaidByHand:
    world.ironic.now = int(world.time)
    for number in range(1, 4):
        world.ironic.have(number)
    replica = await world.start()
    assert world.placed.open() == {1, 2, 3}
    return replica


@pytest.mark.parametrize("nulls_first", [False, True], ids=["by what changed", "by reading everything"])
@in_virtual_time
async def test_changes_without_notifications_are_found_within_seconds(nulls_first: bool) -> None:
    async with followed(sweep_seconds=60.0, deaf_sweep_seconds=5.0) as world:
        world.ironic = FakeIronic(nulls_first=nulls_first)
        replica = await with_nodes(world)
        await world.change(replica, 2, "update.end", name="changed once")
        replica.goes_deaf()
        for maintenance in (True, False, True):
            await world.change(None, 1, "", maintenance=maintenance)
            assert await world.takes(1, open=not maintenance) < 6.0


@in_virtual_time
async def test_ironic_is_polled_rarely_while_notifications_arrive() -> None:
    async with followed(sweep_seconds=60.0, deaf_sweep_seconds=5.0) as world:
        await with_nodes(world)
        before = len(world.ironic.requests)
        await world.change(None, 1, "", maintenance=True)
        assert 20.0 < await world.takes(1, open=False) < 65.0
        assert len(world.ironic.requests) - before < 10


@in_virtual_time
async def test_missed_changes_are_read_when_notifications_resume() -> None:
    async with followed(sweep_seconds=3600.0, deaf_sweep_seconds=3600.0) as world:
        replica = await with_nodes(world)
        for maintenance in (True, False, True):
            replica.goes_deaf()
            await world.change(None, 1, "", maintenance=maintenance)
            replica.was_interrupted()
            assert await world.takes(1, open=not maintenance) < 1.0


@in_virtual_time
async def test_a_node_deleted_without_a_notification_is_found() -> None:
    async with followed(sweep_seconds=3600.0, deaf_sweep_seconds=3600.0) as world:
        replica = await with_nodes(world)
        replica.goes_deaf()
        del world.ironic.nodes[next(iter(world.ironic.nodes))]
        replica.was_interrupted()
        assert await world.takes(1, open=False) < 6.0


@in_virtual_time
async def test_an_ironic_without_notifications_is_polled_often() -> None:
    async with followed(sweep_seconds=60.0, deaf_sweep_seconds=5.0) as world:
        replica = await with_nodes(world)
        replica.goes_deaf()
        world.ironic.now = int(world.time)
        world.ironic.have(9)
        assert await world.takes(9, open=True) < 6.0

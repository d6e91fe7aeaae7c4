"""While Ironic's broker is unreachable, sweeps run often, and once more when it returns."""

import pytest

from tests.support.fake_ironic import FakeIronic
from tests.support.followed_ironic import FollowedWorld, SaidByHand, followed
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
async def test_while_nothing_is_heard_what_changed_is_found_within_seconds(nulls_first: bool) -> None:
    async with followed(sweep_seconds=60.0, deaf_sweep_seconds=5.0) as world:
        world.ironic = FakeIronic(nulls_first=nulls_first)
        replica = await with_nodes(world)
        await world.change(replica, 2, "update.end", name="changed once")
        replica.goes_deaf()
        for maintenance in (True, False, True):
            await world.change(None, 1, "", maintenance=maintenance)
            assert await world.takes(1, open=not maintenance) < 6.0


@in_virtual_time
async def test_while_it_is_heard_nobody_looks_so_often() -> None:
    async with followed(sweep_seconds=60.0, deaf_sweep_seconds=5.0) as world:
        await with_nodes(world)
        before = len(world.ironic.requests)
        await world.change(None, 1, "", maintenance=True)
        assert 20.0 < await world.takes(1, open=False) < 65.0
        assert len(world.ironic.requests) - before < 10


@in_virtual_time
async def test_when_it_is_heard_again_what_was_missed_is_found_at_once() -> None:
    async with followed(sweep_seconds=3600.0, deaf_sweep_seconds=3600.0) as world:
        replica = await with_nodes(world)
        for maintenance in (True, False, True):
            replica.goes_deaf()
            await world.change(None, 1, "", maintenance=maintenance)
            replica.was_interrupted()
            assert await world.takes(1, open=not maintenance) < 1.0


@in_virtual_time
async def test_a_node_that_went_while_nothing_was_heard_is_found_soon_after() -> None:
    async with followed(sweep_seconds=3600.0, deaf_sweep_seconds=3600.0) as world:
        replica = await with_nodes(world)
        replica.goes_deaf()
        del world.ironic.nodes[next(iter(world.ironic.nodes))]
        replica.was_interrupted()
        assert await world.takes(1, open=False) < 6.0


@in_virtual_time
async def test_an_ironic_that_never_said_a_word_is_looked_at_often_until_it_does() -> None:
    async with followed(sweep_seconds=60.0, deaf_sweep_seconds=5.0) as world:
        replica = await with_nodes(world)
        replica.goes_deaf()
        world.ironic.now = int(world.time)
        world.ironic.have(9)
        assert await world.takes(9, open=True) < 6.0

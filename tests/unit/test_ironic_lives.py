"""A node with many changes per second, announced in any order: the reports to placement."""

import random

import pytest

from ironic_sync.core.node import ReceivedNotification
from tests.support.belief_world import WAYS, NodeWorld, Vary
from tests.support.random_ironic import RandomIronic


def a_life(
    seed: int, vary: Vary[ReceivedNotification], late: float, *, can_read: bool, reads_tell_times: bool
) -> None:
    chance = random.Random(seed)
    ironic = RandomIronic(chance, reads_tell_times=reads_tell_times)
    world = NodeWorld(ironic, can_read=can_read, chance=chance)
    held: list[ReceivedNotification] = []
    for turn in range(25):
        said = vary(ironic.happens(), chance)
        coming = [notification for notification in said if chance.random() >= late]
        coming += [held.pop() for _ in range(len(held)) if chance.random() < 0.5]
        held += [notification for notification in said if notification not in coming]
        for notification in coming:
            world.deliver(notification)
            world.some_reading()
        world.now = max(world.now, ironic.now)
        world.all_reading()
        assert world.open_against_the_truth() == [], f"turn {turn}, seed {seed}"
        if turn % 5 == 4:
            world.sweep()
            world.all_reading()
            assert world.differences() == [], f"turn {turn}, seed {seed}"


@pytest.mark.parametrize("late", [0.0, 0.2], ids=["", "some late"])
@pytest.mark.parametrize(
    ("can_read", "reads_tell_times"),
    [(True, True), (True, False), (False, True)],
    ids=["with an API", "with one that tells no times", "without"],
)
@pytest.mark.parametrize("vary", WAYS)
def test_random_events_leave_no_closed_node_open(
    vary: Vary[ReceivedNotification], can_read: bool, reads_tell_times: bool, late: float
) -> None:
    for seed in range(150):
        a_life(seed, vary, late, can_read=can_read, reads_tell_times=reads_tell_times)


@pytest.mark.parametrize("reads_tell_times", [True, False])
def test_with_an_api_and_nothing_lost_placement_is_always_right(reads_tell_times: bool) -> None:
    for seed in range(300):
        chance = random.Random(seed)
        ironic = RandomIronic(chance, reads_tell_times=reads_tell_times, tells_all=True)
        world = NodeWorld(ironic, can_read=True, chance=chance)
        for notification in ironic.said:
            world.deliver(notification)
        for turn in range(25):
            for notification in ironic.happens():
                world.deliver(notification)
                world.some_reading()
            world.now = max(world.now, ironic.now)
            world.all_reading()
            assert world.differences() == [], f"turn {turn}, seed {seed}"

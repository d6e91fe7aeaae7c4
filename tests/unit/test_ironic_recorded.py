"""Recorded notifications of a real Ironic in order, out of order, twice and with gaps: placement's final
state.

Placement is a model (`tests/support/belief_world.py`), compared with the real one in
`tests/contract/test_ironic_placement.py`.
"""

import random
from collections.abc import Iterator

import pytest

from ironic_sync.core.node import ReceivedNotification
from tests.support.belief_world import SILENT, WAYS, NodeWorld, Recorded, Truth, Vary, recorded

TRUTH = Truth()
SEEDS = range(10)


def steps_of(
    vary: Vary[ReceivedNotification], chance: random.Random, late: float
) -> list[tuple[Recorded, list[ReceivedNotification]]]:
    """The recording as it is delivered; some messages come only with one of the next steps."""
    found, held = [], list[ReceivedNotification]()
    for step in recorded():
        said = vary(step.said, chance)
        now = [message for message in said if chance.random() >= late]
        mixed = now + [held.pop() for _ in range(len(held)) if chance.random() < 0.5]
        if late:
            chance.shuffle(mixed)
        held += [message for message in said if message not in now]
        found.append((step, mixed))
    return found


def played(
    vary: Vary[ReceivedNotification], can_read: bool, late: float
) -> Iterator[tuple[NodeWorld, Recorded, int]]:
    """A world of each seed after each step: all of it has been delivered, and some of it read."""
    for seed in SEEDS:
        chance = random.Random(seed)
        world = NodeWorld(TRUTH, can_read=can_read, chance=chance)
        for step, said in steps_of(vary, chance, late):
            for notification in said:
                world.deliver(notification)
                world.some_reading()
            yield world, step, seed


@pytest.mark.parametrize("late", [0.0, 0.2], ids=["", "some late"])
@pytest.mark.parametrize("can_read", [True, False], ids=["with an API", "without"])
@pytest.mark.parametrize("vary", WAYS)
def test_after_a_sweep_placement_matches_the_documented_table(
    vary: Vary[ReceivedNotification], can_read: bool, late: float
) -> None:
    for world, step, seed in played(vary, can_read, late):
        world.now = max(world.now, step.ended)
        world.all_reading()
        world.sweep()
        world.all_reading()
        assert world.differences() == [], f"after {step.step}, seed {seed}"


@pytest.mark.parametrize("late", [0.0, 0.2], ids=["", "some late"])
@pytest.mark.parametrize("can_read", [True, False], ids=["with an API", "without"])
@pytest.mark.parametrize("vary", WAYS)
def test_without_a_sweep_no_closed_node_stays_open(
    vary: Vary[ReceivedNotification], can_read: bool, late: float
) -> None:
    for world, step, seed in played(vary, can_read, late):
        world.all_reading()
        assert world.open_against_the_truth() == [], f"after {step.step}, seed {seed}"


@pytest.mark.parametrize("can_read", [True, False], ids=["with an API", "without"])
def test_ordered_events_miss_only_changes_without_events(can_read: bool) -> None:
    world = NodeWorld(TRUTH, can_read=can_read, chance=random.Random(0))
    missed = set()
    for step in recorded():
        for notification in step.said:
            world.deliver(notification)
            world.all_reading()
        world.now = max(world.now, step.ended)
        if step.nodes.keys() & set(world.differences()):
            missed.add(step.step)
    assert missed == SILENT

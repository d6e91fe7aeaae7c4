"""Hundreds of small clouds in which everything goes wrong, and the promises that hold all the same."""

import pytest

from simulation.clockwork import run
from simulation.world import World


def simulate(seed: int) -> World:
    world = World(seed)
    run(world.run())
    return world

@pytest.mark.parametrize("seed", range(3))
def test_some(seed):
    w = simulate(seed)
    print(w.steps, len(w.ends))

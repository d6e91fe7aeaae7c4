"""The same clouds with more seeds and more failures. Takes minutes: `make soak`."""

import pytest

from tests.simulation.test_simulation import simulate
from tests.simulation.world import Trouble

SEEDS = 3000
MOVING = 1000
HARSH = Trouble(
    reorder=0.5,
    duplicate=0.3,
    crashes=20,
    reschedule=0.4,
    abort=0.05,
    hang=0.1,
    phases=0.2,
    phases_hang=0.1,
    waits=0.5,
)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(10_000, 10_000 + SEEDS, 100), ids=lambda n: f"{n}-{n + 99}")
def test_no_seed_breaks_a_promise_however_harsh(first: int) -> None:
    live_through(range(first, first + 100), moves=None)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(20_000, 20_000 + MOVING, 100), ids=lambda n: f"{n}-{n + 99}")
def test_no_move_breaks_a_promise_however_harsh(first: int) -> None:
    live_through(range(first, first + 100), moves=True)


def live_through(seeds: range, moves: bool | None) -> None:
    for seed in seeds:
        try:
            world = simulate(seed, HARSH, moves)
        except Exception as problem:
            problem.add_note(f"in the simulation of seed {seed}")
            raise
        assert set(world.ends) == set(world.accepted)
        assert set(world.movers.ends) == set(world.movers.asked)

"""The replaceable clock, and retries of lost races."""

import random
import uuid

import pytest

from bus.clock import Clock
from bus.sql.failures import ATTEMPTS, LONGEST_WAIT, SHORTEST_WAIT, Conflict, retrying


def test_wall_time_may_jump_while_durations_do_not() -> None:
    wall, passed = [1_700_000_000.0], [5.0]
    clock = Clock(now=lambda: wall[0], monotonic=lambda: passed[0])
    began = clock.now(), clock.monotonic()
    wall[0] -= 3600.0
    passed[0] += 1.5
    assert (clock.now() - began[0], clock.monotonic() - began[1]) == (-3600.0, 1.5)


def test_left_alone_time_passes() -> None:
    clock = Clock()
    assert clock.monotonic() <= clock.monotonic()


def test_a_seed_pins_what_is_made_by_chance() -> None:
    assert Clock(chance=random.Random(1)).uuid() == Clock(chance=random.Random(1)).uuid()
    assert Clock().uuid() != Clock().uuid()


def test_identifiers_are_random_uuids() -> None:
    made, library = Clock(chance=random.Random(3)), random.Random(3)
    assert [made.uuid() for _ in range(200)] == [
        str(uuid.UUID(int=library.getrandbits(128), version=4)) for _ in range(200)
    ]


class RetriedRace:
    def __init__(self, losses: int, error: type[Exception] = Conflict) -> None:
        self.losses = losses
        self.error = error
        self.runs = 0

    async def __call__(self, lap: int = 0) -> str:
        self.runs += 1
        if self.runs <= self.losses:
            raise self.error(f"loss {self.runs}")
        return f"won {lap}"


@pytest.mark.parametrize("losses", [0, 1, ATTEMPTS - 1])
async def test_a_retried_function_runs_until_it_succeeds(waits: list[float], losses: int) -> None:
    racer = RetriedRace(losses)
    assert await retrying()(racer.__call__)(3) == "won 3"
    assert (racer.runs, len(waits)) == (losses + 1, losses)


async def test_at_last_the_conflict_is_raised(waits: list[float]) -> None:
    racer = RetriedRace(99)
    with pytest.raises(Conflict, match=f"loss {ATTEMPTS}"):
        await retrying()(racer.__call__)()
    assert racer.runs == ATTEMPTS


async def test_the_fallback_gets_the_same_arguments(waits: list[float]) -> None:
    contended = retrying(attempts=3, otherwise=lambda lap: f"contended {lap}")(RetriedRace(99).__call__)
    assert await contended(5) == "contended 5"


async def test_another_error_is_not_run_again(waits: list[float]) -> None:
    racer = RetriedRace(1, KeyError)
    with pytest.raises(KeyError):
        await retrying()(racer.__call__)()
    assert racer.runs == 1


async def test_the_waits_grow_within_bounds_and_a_seed_repeats_them(waits: list[float]) -> None:
    for _ in range(2):
        with pytest.raises(Conflict):
            await retrying(Clock(chance=random.Random(7)))(RetriedRace(99).__call__)()
    first, second = waits[: ATTEMPTS - 1], waits[ATTEMPTS - 1 :]
    assert first == second
    assert all(SHORTEST_WAIT <= wait <= min(LONGEST_WAIT, 0.01 * 2**n) for n, wait in enumerate(first))
    assert len(set(first)) == len(first)

"""Hundreds of small clouds with random failures, in which all guarantees must hold.

The first seeds always run, all five hundred with `make soak`. A failing seed always fails: run its group
with `pytest -m soak -k 21`, or call `simulate(seed)`, whose `history` shows all events.
"""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.databases import StandbyCopy
from tests.simulation.faults import HARSH, SERVER_FAULTS, FaultRates, with_faults
from tests.simulation.running import SWARM, WorldOptions, attempt, make_world
from tests.simulation.servers import ServerFaults
from tests.simulation.world import SimulatedWorld
from tests.support.virtual_time import run

SEEDS = 500
_AT_ONCE = 3
_ALWAYS = 0
_EVENTFUL = 9  # the first seed of a group in whose worlds moves end in each way
_SEEDS_TRIED = 20
_GROUPS = [
    pytest.param(range(at, at + _AT_ONCE), id=str(at), marks=[] if at == _EVENTFUL else pytest.mark.soak)
    for at in range(0, SEEDS, _AT_ONCE)
]


def simulate(
    seed: int,
    faults: FaultRates | None = None,
    moves: bool | None = None,
    *,
    shared: bool = False,
    requests: int = 14,
) -> SimulatedWorld:
    world = make_world(
        seed, faults or FaultRates(), WorldOptions(requests=requests, moves=moves), shared=shared
    )
    run(world.run())
    return world


def _first_or_soak(first: Sequence[int], seeds: int, step: int) -> list[Any]:
    """Return the seeds of each run, and all in groups for the long run."""
    groups = (range(at, at + step) for at in range(0, seeds, step))
    return [
        pytest.param(first, id="-".join(map(str, first))),
        *(pytest.param(group, id=f"{group[0]}-{group[-1]}", marks=pytest.mark.soak) for group in groups),
    ]


def simulate_all(seeds: Iterable[int]) -> list[SimulatedWorld]:
    worlds = []
    for seed in seeds:
        try:
            worlds.append(simulate(seed))
        except Exception as problem:
            problem.add_note(f"in the simulation of seed {seed}")
            raise
    return worlds


@pytest.mark.parametrize("seeds", _GROUPS)
def test_no_random_world_breaks_an_invariant(seeds: range) -> None:
    worlds = simulate_all(seeds)
    assert len({world.digest for world in worlds}) == len(seeds)
    assert all(world.steps > 100 for world in worlds)
    if seeds.start != _EVENTFUL:
        return
    ends = Counter(status for world in worlds for status, _ in world.client.ends.values())
    # and the seeds did make something happen
    assert min(ends["active"], ends["error"], ends["unplaceable"]) > 0
    assert any(world.client.deleted for world in worlds)
    assert any(host.endswith("-numa") for world in worlds for status, host in world.client.ends.values())
    assert any("kill" in event for world in worlds for event in world.history)
    moved = Counter(
        how.split(" on ")[0].split(":")[0] for world in worlds for how in world.client.moving.ends.values()
    )
    assert moved.keys() >= {"done", "error", "aborted", "deleted", "refused"}


@pytest.mark.parametrize("seeds", _first_or_soak([5], 300, 2))
def test_no_random_world_with_shared_queues_of_agents_breaks_an_invariant(seeds: Sequence[int]) -> None:
    events: list[str] = []
    for seed in seeds:
        try:
            events += simulate(seed, shared=True).history
        except Exception as problem:
            problem.add_note(f"in the simulation of seed {seed} with shared queues")
            raise
    assert any("settled gateway.c1:agent.build.c1.*" in event for event in events)
    assert not any("settled agent." in event for event in events)


@pytest.mark.parametrize("seeds", _first_or_soak([31], 300, 3))
def test_no_random_world_with_faults_of_servers_breaks_an_invariant(seeds: Sequence[int]) -> None:
    for seed in seeds:
        outcome = attempt(seed, WorldOptions(SWARM, requests=3))
        assert outcome.broken == "", f"seed {seed}: {outcome.last_events}"


@pytest.mark.parametrize("seeds", _first_or_soak((1, 2), 1000, 20))
def test_while_headroom_is_kept_any_host_and_any_rack_can_be_lost(seeds: Sequence[int]) -> None:
    outcomes = [attempt(seed, WorldOptions(SWARM, requests=6, headroom=True)) for seed in seeds]
    assert [(outcome.seed, outcome.broken) for outcome in outcomes if outcome.broken] == []
    assert sum(outcome.losses for outcome in outcomes) > 10 * len(seeds)


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        # two cells know a build
        pytest.param(74, WorldOptions("commits", requests=5, moves=True), id="74"),
        # a queue of queries is lost during an evacuation
        pytest.param(557, WorldOptions(SWARM), id="557"),
        # a queue of queries is lost while a scheduler reads placement's index
        pytest.param(1976, WorldOptions(SWARM), id="1976"),
        # a deletion times out when everything else has ended
        pytest.param(668, WorldOptions(SWARM), id="668"),
        # a client deletes a build in the second of two cells that know it
        pytest.param(6116, WorldOptions(SWARM), id="6116"),
        # an instance is deleted between the claim of a move and its lost order
        pytest.param(3646, WorldOptions(SWARM), id="3646"),
        # a deleted build has a second guest after a fail-over
        pytest.param(8419, WorldOptions(SWARM), id="8419"),
        # a build that preempts is deleted between its claim and its order
        pytest.param(42, WorldOptions(SWARM, requests=4, preempts=True), id="42 preempts"),
        # a fail-over loses the commits of an instance, and its agent loses its disk
        pytest.param(860, WorldOptions(SWARM, requests=4, preempts=True), id="860 preempts"),
    ],
)
@pytest.mark.soak
def test_worlds_that_failed_before_are_sound(seed: int, options: WorldOptions) -> None:
    outcome = attempt(seed, options)
    assert outcome.broken == "", outcome.last_events


@pytest.mark.soak
def test_each_fault_of_servers_happens() -> None:
    happened: Counter[str] = Counter()
    for seed in range(3):
        happened += simulate(seed, with_faults("servers"), requests=6).happened
    assert happened.keys() == SERVER_FAULTS.keys()


def digest_of_both(seed: int) -> str:
    """Return the digest of a world with faults of processes, and of one with faults of servers."""
    return "".join(simulate(seed, faults, requests=2).digest for faults in (None, with_faults("servers")))


@pytest.mark.parametrize("seed", [_ALWAYS, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (7, 12))])
def test_the_same_seed_replays_the_same_history(seed: int) -> None:
    here = digest_of_both(seed)
    program = (
        "import gc, logging; logging.disable(); gc.set_threshold(50); "
        f"from tests.simulation.test_simulation import digest_of_both; print(digest_of_both({seed}))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(Path(__file__).parents[2])}
    there = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert there.stdout.strip() == here


@pytest.mark.soak
@pytest.mark.parametrize("moves", [None, True])
@pytest.mark.parametrize("first", range(10_000, 12_000, 100), ids=lambda n: f"{n}-{n + 99}")
def test_no_harsh_random_world_breaks_an_invariant(first: int, moves: bool | None) -> None:
    for seed in range(first, first + 100):
        try:
            world = simulate(seed, FaultRates(**HARSH), moves)
        except Exception as problem:
            problem.add_note(f"in the simulation of seed {seed}")
            raise
        assert set(world.client.ends) == set(world.client.accepted)
        assert set(world.client.moving.ends) == set(world.client.moving.requested)


def test_an_instance_whose_record_and_guest_are_both_lost_leaves_no_allocations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lose_both(faults: ServerFaults) -> None:
        """Lose the last commits of the cell with the first active instance, and the disk of its agent."""
        world = faults.world
        cells = {cell: world.databases[f"cell_{cell}"] for cell in world.cells}
        copies = {cell: await StandbyCopy.of([database]) for cell, database in cells.items()}
        agents = {one.host: each for each in world.fleet() for one in each.hosts}  # of virtual machines
        hosts = list[str]()
        async with asyncio.timeout(60.0):
            while not hosts:
                await asyncio.sleep(0.1)
                ends = world.client.ends.values()
                hosts = [host for status, host in ends if status == "active" and host in agents]
        agent = agents[hosts[0]]
        await world.kill(f"agent.{agent.agent}", faults.chance)
        world.commits_lost = True
        await copies[agent.cell].promote()

    monkeypatch.setattr(ServerFaults, "_lose_commits", lose_both)
    faults = FaultRates(crashes=0, late_copies=0, reschedule=0, abort=0, hang=0, lost_commits=1)
    for seed in range(_SEEDS_TRIED):  # it depends on the seed whether the lost commits have the instance
        world = make_world(seed, faults, WorldOptions(requests=4, moves=False, preempts=False))
        run(world.run())
        released = any(event.endswith("no cell knows it: released") for event in world.history)
        if world.forgetful and world.traceless and released:
            return
    pytest.fail("no world lost both the record and the guest of an instance")

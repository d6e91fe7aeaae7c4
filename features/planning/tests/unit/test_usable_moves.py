"""Rebalancing with the goal usable makes the moves after which most more of the hosts is usable."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from random import Random

import numpy as np
import pytest

from bus.candidates import Floats
from bus.packing import RowPacking
from features.planning.core.moved_cloud import CloudState, MovableInstance, PlannedMove, lost_by
from features.planning.core.rebalancing import BalanceLimits, plan_balance
from features.planning.core.usable_moves import plan_usable
from features.planning.tests.support.planned_clouds import cloud_of_sizes
from features.planning.tests.support.slow_usable import with_usable
from tests.support.ids import uid

SIZES = ((1, 2), (2, 2), (2, 6), (4, 8))
USUAL = ({"VCPU": 4, "MEMORY_MB": 8}, {"VCPU": 6, "MEMORY_MB": 12}, {"VCPU": 2, "MEMORY_MB": 6})
Moves = list[tuple[int, int, int]]  # size, source, destination


def with_vcpus(*hosts: tuple[int, ...], usual: int = 8) -> CloudState:
    """Return hosts of 16 processors with instances of these sizes; instances of `usual` are requested."""
    return with_usable(cloud_of_sizes(*hosts), [{"VCPU": usual}])


def a_mixed_cloud(chance: Random, hosts: int, most: int) -> CloudState:
    """Return hosts of two sizes with random instances, some of which accept only half of the hosts."""
    classes, whole = ("VCPU", "MEMORY_MB"), np.array([chance.choice(((8.0, 16.0), (12.0, 32.0)))] * hosts)
    free, halves = whole.copy(), [np.arange(hosts) % 2 == half for half in (0, 1)]
    instances: dict[int, list[MovableInstance]] = {host: [] for host in range(hosts)}
    for number in range(most):
        host, amounts = chance.randrange(hosts), np.array(chance.choice(SIZES), np.float64)
        if (free[host] >= amounts).all():
            free[host] -= amounts
            accepted = np.ones(hosts, np.bool_) if chance.random() < 0.7 else halves[host % 2]
            apart = uid(9000 + chance.randrange(2)) if chance.random() < 0.2 else None
            instances[host].append(MovableInstance(uid(number), amounts, accepted, apart=apart))
    return with_usable(CloudState(RowPacking(classes, free, whole), instances), USUAL)


def planned(cloud: CloudState, budget: int = 10, gain: float = 0.01) -> list[PlannedMove]:
    assert cloud.usable is not None
    hosts = np.ones(len(cloud.packing), np.bool_)
    return plan_usable(cloud, cloud.usable, hosts, BalanceLimits(budget, gain))[0]


def gain_of(cloud: CloudState, moves: Sequence[PlannedMove]) -> float:
    return -lost_by(cloud, moves, ())


@pytest.mark.parametrize(
    ("cloud", "limits", "moves"),
    [
        (with_vcpus((2,), (2,)), {}, [(2, 0, 1)]),  # one of the hosts has 16 again: two of 8 fit
        (with_vcpus((2,), (2,)), {"gain": 0.5}, [(2, 0, 1)]),
        (with_vcpus((2,), (2,)), {"gain": 0.51}, []),
        (with_vcpus((8,), (8,)), {}, []),  # what is free is usable already
        (with_vcpus((2,), (3, 8), (8, 8)), {}, [(2, 0, 1)]),  # into the rest of 5
        (with_vcpus((8, 1), (1, 4), (8, 8)), {}, [(1, 0, 1)]),  # not to the full host
        (with_vcpus((4, 1), (4, 2), (2,)), {}, [(2, 2, 1)]),  # where it costs nothing, to the fullest
        (with_vcpus((2,), (2,), (2,), (2,)), {"budget": 1}, [(2, 0, 1)]),
        (with_vcpus((9,), (9,)), {}, []),  # no move fits
        (with_vcpus((), ()), {}, []),
    ],
)
def test_instances_move_where_more_becomes_usable(
    cloud: CloudState, limits: dict[str, float], moves: Moves
) -> None:
    found = planned(cloud, **limits)  # type: ignore[arg-type]
    assert [(int(each.instance.amounts[0]), each.source, each.destination) for each in found] == moves


def test_the_figures_are_how_many_instances_fit_before_and_after() -> None:
    cloud = with_vcpus((2,), (2,), (9,))
    assert cloud.usable is not None
    hosts = np.array([True, True, False])
    _, before, after = plan_usable(cloud, cloud.usable, hosts, BalanceLimits(1, 0.1))
    assert (before.tolist(), after.tolist()) == ([1, 1, 0], [2, 1, 0])


def test_other_hosts_than_those_of_the_mask_neither_get_nor_lose_instances() -> None:
    cloud = with_vcpus((2,), (2,), (3,))
    assert cloud.usable is not None
    hosts = np.array([False, True, True])
    moves, _, _ = plan_usable(cloud, cloud.usable, hosts, BalanceLimits(5, 0.1))
    assert {(move.source, move.destination) for move in moves} == {(1, 2)}


def test_instances_stay_that_no_other_host_accepts_or_that_a_host_refused() -> None:
    cloud = with_vcpus((2,), (2,))
    only_there = [replace(each, accepted=np.array([True, False])) for each in cloud.instances[0]]
    held = replace(cloud, instances={0: only_there, 1: cloud.instances[1]})
    assert [move.source for move in planned(held)] == [1]
    refused = {each.build: [1 - host] for host, some in cloud.instances.items() for each in some}
    assert planned(replace(cloud, forbidden=refused)) == []


def all_moves(cloud: CloudState, free: Floats, moves: Sequence[PlannedMove]) -> list[PlannedMove]:
    """Return the moves that are possible after other moves."""
    moved = {move.instance.build for move in moves}
    taken = {(move.instance.apart, move.destination) for move in moves if move.instance.apart}
    return [
        PlannedMove(each, source, host)
        for source, some in cloud.instances.items()
        for each in some
        if each.build not in moved
        for host in np.flatnonzero(each.accepted & (free >= each.amounts).all(axis=1)).tolist()
        if host != source and (each.apart, host) not in taken
    ]


def after(free: Floats, move: PlannedMove) -> Floats:
    """Return the free amounts after a move; fail if it does not fit when it begins."""
    assert move.instance.accepted[move.destination]
    free = free.copy()
    free[move.destination] -= move.instance.amounts
    assert (free >= 0).all()
    free[move.source] += move.instance.amounts
    return free


def best_plan(cloud: CloudState, free: Floats, moves: tuple[PlannedMove, ...], most: int) -> float:
    """Return the highest gain of all plans that begin with some moves, and have at most `most`."""
    best = gain_of(cloud, moves)
    if len(moves) < most:
        for move in all_moves(cloud, free, moves):
            best = max(best, best_plan(cloud, after(free, move), (*moves, move), most))
    return best


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 400), marks=pytest.mark.soak)])
def test_the_first_move_gains_most_and_the_plan_about_as_much_as_the_best_plan(seeds: Sequence[int]) -> None:
    gained = possible = 0.0
    for seed in seeds:
        cloud = a_mixed_cloud(Random(seed), 4, 8)
        moves, free = planned(cloud, budget=3), cloud.packing.free
        gains = [gain_of(cloud, [move]) for move in all_moves(cloud, free, [])]
        if not moves:
            assert max(gains, default=0.0) < 0.01
            continue
        assert gain_of(cloud, moves[:1]) == pytest.approx(max(gains))
        gained += gain_of(cloud, moves)
        possible += best_plan(cloud, free, (), 3)
    print(f"gained {gained:.3f}, possible {possible:.3f}")
    assert gained > 0.85 * possible > 1.0


@pytest.mark.parametrize("seed", range(8))
def test_every_move_fits_and_gains_what_it_says(seed: int) -> None:
    cloud = a_mixed_cloud(Random(seed), 12, 50)
    moves, free = planned(cloud, 15, 0.02), cloud.packing.free
    assert 1 < len(moves) <= 15
    assert len({move.instance.build for move in moves}) == len(moves)
    for number, move in enumerate(moves):
        gained = gain_of(cloud, moves[: number + 1]) - gain_of(cloud, moves[:number])
        assert move.gain == pytest.approx(gained)
        assert move.gain >= 0.02 - 1e-9
        free = after(free, move)
    for one, other in combinations(moves, 2):
        if one.instance.apart is not None and one.instance.apart == other.instance.apart:
            assert one.destination != other.destination


@pytest.mark.parametrize("seed", range(8))
def test_more_becomes_usable_than_by_a_plan_that_spreads(seed: int) -> None:
    cloud = a_mixed_cloud(Random(seed), 12, 50)
    spread, _, _ = plan_balance(cloud, 0, np.ones(12, np.bool_), BalanceLimits(6, 0.01))
    assert gain_of(cloud, planned(cloud, 6)) >= gain_of(cloud, spread)

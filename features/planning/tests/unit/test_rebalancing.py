"""Rebalancing moves instances from the fullest hosts to emptier ones, each for a stated gain."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from features.planning.core.moved_cloud import CloudState
from features.planning.core.rebalancing import BalanceLimits, ImbalanceWatch, plan_balance
from features.planning.tests.support.planned_clouds import cloud_of_sizes

Moves = list[tuple[int, int, int]]  # size, source, destination


def moves_of(cloud: CloudState, budget: int = 10, gain: float = 0.1, above: float = 0.0) -> Moves:
    hosts, limits = np.ones(len(cloud.packing.free), np.bool_), BalanceLimits(budget, gain, above)
    moves, before, after = plan_balance(cloud, 0, hosts, limits)
    assert after <= before + 1e-9
    return [(int(move.instance.amounts[0]), move.source, move.destination) for move in moves]


@pytest.mark.parametrize(
    ("cloud", "limits", "moves"),
    [
        (cloud_of_sizes((4, 4, 4), ()), {}, [(4, 0, 1)]),
        (cloud_of_sizes((4, 4, 4), (4,)), {}, [(4, 0, 1)]),
        (cloud_of_sizes((4, 4, 4), (4, 4)), {}, []),  # would only exchange the hosts' loads
        (cloud_of_sizes((4, 4, 4), (4,)), {"gain": 0.3}, []),
        (cloud_of_sizes((4, 4, 4), (4,)), {"above": 0.8}, []),
        (cloud_of_sizes((2,) * 7, ()), {"budget": 2}, [(2, 0, 1), (2, 0, 1)]),
        (cloud_of_sizes((4, 4, 4), ()), {"budget": 0}, []),
        (cloud_of_sizes((), ()), {}, []),
    ],
)
def test_instances_move_for_the_gain(cloud: CloudState, limits: dict[str, float], moves: Moves) -> None:
    assert moves_of(cloud, **limits) == moves  # type: ignore[arg-type]


def test_hosts_that_an_instance_does_not_accept_stay_as_they_are() -> None:
    cloud = cloud_of_sizes((4, 4, 4), ())
    only_there = [replace(each, accepted=np.array([True, False])) for each in cloud.instances[0]]
    assert moves_of(replace(cloud, instances={0: only_there, 1: []})) == []


@pytest.mark.parametrize("seed", range(6))
def test_every_move_fits_and_gains_enough(seed: int) -> None:
    chance = Random(seed)
    cloud = cloud_of_sizes(
        *(tuple(chance.choices((1, 2, 4), k=chance.randint(0, 6))) for _ in range(8)), whole=24.0
    )
    moves, before, after = plan_balance(cloud, 0, np.ones(8, np.bool_), BalanceLimits(12, 0.05))
    assert len(moves) <= 12
    free, whole = cloud.packing.free.copy(), 24.0
    for move in moves:
        ends = [move.source, move.destination]
        fullest = (1 - free[ends, 0] / whole).max()
        free[move.destination] -= move.instance.amounts
        assert (free >= 0).all()
        free[move.source] += move.instance.amounts
        gained = fullest - (1 - free[ends, 0] / whole).max()
        assert gained == pytest.approx(move.gain) and gained >= 0.05 - 1e-9
    assert after == pytest.approx((1 - free[:, 0] / whole).std())
    assert after <= before


def test_a_controller_acts_after_the_hold_time() -> None:
    watch = ImbalanceWatch(300.0)
    assert not watch.is_due(0.0, True)
    assert not watch.is_due(299.0, True)
    assert watch.is_due(300.0, True)
    assert not watch.is_due(400.0, False)  # balanced in the meantime
    assert not watch.is_due(401.0, True)
    assert watch.is_due(701.0, True)

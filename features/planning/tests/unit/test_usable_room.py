"""Among equally good plans that make room, the one after which most is usable is taken."""

from random import Random

import numpy as np
import pytest

from features.planning.core.make_room import cost_of, plan_room
from features.planning.core.moved_cloud import CloudState, PlannedMove, lost_by
from features.planning.core.room_demand import RoomDemand, RoomPart
from features.planning.tests.support.planned_clouds import cloud_of_sizes
from features.planning.tests.support.random_clouds import a_cloud
from features.planning.tests.support.slow_usable import a_shape, with_usable
from tests.support.ids import uid

Cost = tuple[int, float, int]  # moves, their total size, stopped instances
USUAL = [{"VCPU": 4, "MEMORY_MB": 8}, {"VCPU": 8, "MEMORY_MB": 16}, {"VCPU": 2, "MEMORY_MB": 8}]


def with_vcpus(*hosts: tuple[int, ...]) -> CloudState:
    """Return hosts of 16 processors with instances of these sizes; instances of 4 are requested."""
    return with_usable(cloud_of_sizes(*hosts), [{"VCPU": 4}])


def demand_of(cloud: CloudState, size: int, *hosts: int, count: int = 1) -> RoomDemand:
    """Return a demand that these hosts accept, or all."""
    everywhere = np.arange(len(cloud.packing))
    accepted = np.isin(everywhere, hosts) if hosts else np.ones(len(everywhere), np.bool_)
    return RoomDemand([RoomPart(np.array([float(size)]), accepted, count, (a_shape({"VCPU": size}),))])


def test_a_moved_instance_goes_where_it_costs_least() -> None:
    # The last host has a rest of 2, if 4 are used of its 6. The others are fuller, and can use their 4.
    cloud = with_vcpus((10, 2), (12,), (12,), (12,), (12,), (10,))
    plan = plan_room(cloud, demand_of(cloud, 6, 0), 3)
    assert [(move.instance.build, move.destination) for move in plan.moves] == [(uid(1), 5)]


def test_the_target_is_that_where_more_stays_usable() -> None:
    # Two of 4 fit on both hosts before. With 5, none fits on the first, and one on the second.
    cloud = with_vcpus((8,), (7,), (13,))
    plan = plan_room(cloud, demand_of(cloud, 5), 3)
    assert (plan.moves, plan.targets) == ((), (1,))


def test_of_two_equal_moves_the_one_that_leaves_more_is_taken() -> None:
    # 6 fit on either of the first two hosts without the instance of 3; the first one could have used its 4.
    cloud = with_vcpus((3, 9), (3, 10), (13,))
    plan = plan_room(cloud, demand_of(cloud, 6), 3)
    assert [(move.source, move.destination) for move in plan.moves] == [(1, 2)]


def best_plans(cloud: CloudState, demand: RoomDemand, most: int) -> tuple[Cost, set[float]] | None:
    """Return the least cost of plans for one build, and how much less is usable after each plan of this cost,
    by a search of all sequences of at most `most` moves; None if there is no plan.
    """
    guests = [(each, host) for host, some in cloud.instances.items() for each in some]
    [part], begin = demand.parts, tuple(host for _, host in guests)
    level: dict[tuple[int, ...], tuple[PlannedMove, ...]] = {begin: ()}
    seen = {begin}
    for _ in range(most + 1):
        plans, after = [], dict[tuple[int, ...], tuple[PlannedMove, ...]]()
        for places, moves in level.items():
            free = cloud.packing.free.copy()
            for (each, first), now in zip(guests, places, strict=True):
                free[first] += each.amounts
                free[now] -= each.amounts
            fits = np.flatnonzero(part.accepted & (free >= part.amounts).all(axis=1)).tolist()
            ways = [
                PlannedMove(each, first, now)
                for (each, first), now in zip(guests, places, strict=True)
                if now != first
            ]
            plans += [(cost_of(moves, cloud.packing.scale), ways, target) for target in fits]
            for at, (each, _) in enumerate(guests):
                for to in np.flatnonzero(each.accepted & (free >= each.amounts).all(axis=1)).tolist():
                    moved = (*places[:at], to, *places[at + 1 :])
                    if moved not in seen:
                        after[moved] = (*moves, PlannedMove(each, places[at], to))
        if plans:
            least = min(cost for cost, _, _ in plans)
            best = [(ways, target) for cost, ways, target in plans if cost == least]
            return least, {lost_by(cloud, ways, [(target, part.shapes)]) for ways, target in best}
        seen.update(after)
        level = after
    return None


@pytest.mark.parametrize("clouds", [range(120), pytest.param(range(120, 400), marks=pytest.mark.soak)])
def test_small_clouds_nearly_always_get_the_plan_of_an_exhaustive_search(clouds: range) -> None:
    possible = best_of_all = needed = differing = 0
    for seed in clouds:
        chance = Random(seed)
        hosts, filled = chance.choice((3, 4)), chance.choice((0.55, 0.65, 0.75, 0.85))
        cloud = with_usable(a_cloud(chance, hosts, (12, 32), filled, 0.15), USUAL)
        vcpus, gib = chance.choice(((6, 12), (8, 16), (8, 24), (10, 20)))
        shape, everywhere = a_shape({"VCPU": vcpus, "MEMORY_MB": gib}), np.ones(hosts, np.bool_)
        demand = RoomDemand([RoomPart(np.array([float(vcpus), float(gib)]), everywhere, 1, (shape,))])
        best, plan = best_plans(cloud, demand, 2), plan_room(cloud, demand, 2)
        if best is None:
            assert plan.code
            continue
        least, lost = best
        possible += 1
        needed += least[0] > 0
        differing += len(lost) > 1
        is_least = not plan.code and cost_of(plan.moves, cloud.packing.scale) == least
        best_of_all += is_least and lost_by(cloud, plan.moves, [(plan.targets[0], (shape,))]) == min(lost)
    print(f"{possible} possible, {best_of_all} are the best plan")
    print(f"{needed} need moves; in {differing} equal plans differ in what is usable")
    assert best_of_all >= 0.96 * possible
    assert needed > len(clouds) / 4
    assert differing > len(clouds) / 10


@pytest.mark.parametrize("seed", range(6))
def test_plans_of_many_hosts_fit_when_they_begin(seed: int) -> None:
    chance = Random(seed)
    cloud = with_vcpus(*(tuple(chance.choices((1, 2, 3, 4), k=chance.randint(3, 4))) for _ in range(40)))
    plan = plan_room(cloud, demand_of(cloud, 13, count=3), 10)
    assert not plan.code
    free = cloud.packing.free.copy()
    for move in plan.moves:
        free[move.destination] -= move.instance.amounts
        assert (free >= 0).all()
        free[move.source] += move.instance.amounts
    for target in plan.targets:
        free[target] -= 13
    assert (free >= 0).all()
    shapes = demand_of(cloud, 13).parts[0].shapes
    assert plan.lost == lost_by(cloud, plan.moves, [(target, shapes) for target in plan.targets])

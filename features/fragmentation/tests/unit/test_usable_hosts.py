"""The values of hosts without some instances and with others are those of a slow evaluation."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Literal

import numpy as np
import pytest

from bench.quality.cloud import Asked, TraceCloud
from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from bus.vocabulary import Allocations
from features.fragmentation.core.usable_hosts import UsableHosts
from features.fragmentation.tests.support.slow_values import (
    Amounts,
    SlowValues,
    after,
    all_ways,
    amounts_of,
    pack,
    some_asked,
    some_hosts,
)
from placement_worker.testing import IndexedSource
from scheduler_worker.core.extension import AlteredHost, Shape, UsualShapes, shape_of
from tests.support.index_source import FilledMemory
from tests.support.provider_trees import an_index, state, tree

ANY = FindCandidates(groups=(ResourceGroup(resources={"VCPU": 1}),))


def shape_asked(asked: Asked) -> Shape:
    of_root = ResourceGroup(resources={"VCPU": asked.flavor.vcpus, "MEMORY_MB": asked.flavor.memory_mb})
    policy: Literal["isolate", "none"] = "isolate" if asked.flavor.extra_specs else "none"
    return shape_of(FindCandidates(groups=(of_root, *asked.groups), group_policy=policy))


@contextmanager
def filled_cloud(chance: Random, seed: int) -> Iterator[tuple[TraceCloud, list[Allocations]]]:
    """Yield hosts, and what the instances on them hold."""
    cloud = TraceCloud(some_hosts(chance), pack(), seed)
    try:
        placed = [cloud.place(some_asked(chance)) for _ in range(30)]
        yield cloud, [held for held in placed if held is not None]
    finally:
        cloud.close()


def usable_of(cloud: TraceCloud, *shapes: Shape) -> UsableHosts:
    providers = cloud.scheduler.source.search(ANY, empty=True).providers()
    return UsableHosts(providers, cloud.scheduler.demand.usual(), shapes)


def negative(held: Allocations) -> Amounts:
    return {uuid: {name: -amount for name, amount in of.items()} for uuid, of in held.items()}


def best_way(asked: Asked, host: Amounts, whole: Amounts, values: SlowValues) -> float:
    return max((values.of(after(host, way), whole) for way in all_ways(asked, host)), default=-np.inf)


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(n, marks=pytest.mark.soak) for n in range(4, 100))]
)
def test_the_values_of_supposed_hosts_are_those_of_a_slow_evaluation(seed: int) -> None:
    chance = Random(seed)
    with filled_cloud(chance, seed) as (cloud, placed):
        (free, whole), index = amounts_of(cloud), cloud.placement.index
        values = SlowValues(cloud.scheduler.demand.usual(), whole)
        asked = [some_asked(chance) for _ in range(5)]
        usable = usable_of(cloud, *map(shape_asked, asked))
        supposed, expected = [], []
        for host, of_host in zip(free, whole, strict=True):
            position = index.rows[next(iter(host))].position
            there = [held for held in placed if held.keys() <= host.keys()]
            for added in (None, *asked):
                leaving = chance.sample(there, min(chance.randint(0, 2), len(there)))
                left = host
                for held in leaving:
                    left = after(left, negative(held))
                rows = tuple(
                    tuple(
                        (index.rows[uuid].position, *each) for uuid, of in held.items() for each in of.items()
                    )
                    for held in leaving
                )
                shapes = () if added is None else (shape_asked(added),)
                supposed.append(AlteredHost(position, rows, shapes))
                of_left = values.of(left, of_host)
                expected.append(of_left if added is None else best_way(added, left, of_host, values))
        assert usable.values(supposed) == pytest.approx(expected, abs=1e-8)
        assert len(set(expected)) > 3


@pytest.mark.parametrize("seed", range(4))
def test_costs_and_what_is_wasted_follow_from_the_values(seed: int) -> None:
    chance = Random(seed)
    with filled_cloud(chance, seed) as (cloud, _):
        (free, whole), asked = amounts_of(cloud), some_asked(chance)
        values = SlowValues(cloud.scheduler.demand.usual(), whole)
        usable = usable_of(cloud, shape_asked(asked))
        costs, wasted = usable.costs(shape_asked(asked)), usable.wasted()
        for host, of_host in zip(free, whole, strict=True):
            position, before = cloud.placement.index.rows[next(iter(host))].position, values.of(host, of_host)
            together = {name: sum(of.get(name, 0) for of in host.values()) for name in values.average}
            assert costs[position] == pytest.approx(before - best_way(asked, host, of_host, values), abs=1e-8)
            assert wasted[position] == pytest.approx(values.size(together) - before, abs=1e-8)


def test_instances_are_counted_by_how_much_is_requested_of_their_shapes() -> None:
    index = an_index([tree(state(1, None, {"VCPU": 16}, {"VCPU": 3}))])
    providers = IndexedSource(FilledMemory(index)).search(ANY).providers()
    small, large = [
        shape_of(FindCandidates(groups=(ResourceGroup(resources={"VCPU": vcpus}),))) for vcpus in (2, 6)
    ]
    usable = UsableHosts(providers, UsualShapes((small, large), (0.75, 0.25), 1), ())
    # 6 of the small and 2 of the large one fit; as much is requested of both
    assert usable.instances([AlteredHost(0), AlteredHost(0, added=(large,))]).tolist() == [4.0, 2.0]


def test_an_overcommitted_host_becomes_usable_only_by_what_is_free_then() -> None:
    index = an_index([tree(state(1, None, {"VCPU": 16}, {"VCPU": 20}))])
    providers = IndexedSource(FilledMemory(index)).search(ANY, empty=True).providers()
    shape = shape_of(FindCandidates(groups=(ResourceGroup(resources={"VCPU": 4}),)))
    usable = UsableHosts(providers, UsualShapes((shape,), (1.0,), 1), ())
    supposed = [AlteredHost(0), AlteredHost(0, without=(((0, "VCPU", 8),),))]
    assert usable.instances(supposed).tolist() == [0.0, 1.0]

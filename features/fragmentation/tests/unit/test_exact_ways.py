"""The chosen host and the way in it are the best of all ways of all hosts, by a slow evaluation."""

from collections.abc import Callable, Sequence
from random import Random

import pytest

from bench.quality.cloud import TraceCloud
from features.fragmentation.tests.support.slow_values import (
    SlowScarcity,
    SlowValues,
    after,
    all_ways,
    amounts_of,
    balanced,
    pack,
    some_asked,
    some_hosts,
)
from scheduler_worker.extension import ChoicePolicy

SEEDS = [*range(4), *(pytest.param(n, marks=pytest.mark.soak) for n in range(4, 100))]


@pytest.mark.parametrize("gpus", [(0, 0, 1, 1, 2), (0,)])
@pytest.mark.parametrize("profile", [pack, balanced])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_choice_is_the_best_way_of_the_best_host(
    seed: int, profile: Callable[[], ChoicePolicy], gpus: Sequence[int]
) -> None:
    chance = Random(seed)
    cloud = TraceCloud(some_hosts(chance), profile(), seed)
    scarcity = None if profile is pack else SlowScarcity()
    try:
        for _ in range(30):
            asked, (free, whole) = some_asked(chance, gpus), amounts_of(cloud)
            chosen = cloud.place(asked)
            values = SlowValues(cloud.scheduler.demand.usual(), whole)
            if scarcity is not None:
                scarcity.follow(values, free, whole)
            costs = {}
            for host, of_host in zip(free, whole, strict=True):
                before = values.of(host, of_host, scarcity)
                for way in all_ways(asked, host):
                    key = frozenset((uuid, *sorted(of.items())) for uuid, of in way.items())
                    then = after(host, way)
                    costs[key] = values.of(then, of_host, scarcity) - before
                    if scarcity is not None:
                        costs[key] += scarcity.balance(then, of_host)
            if chosen is None:
                assert not costs
                continue
            taken = frozenset((uuid, *sorted(of.items())) for uuid, of in chosen.items())
            assert costs[taken] == pytest.approx(max(costs.values()), abs=1e-8)
    finally:
        cloud.close()

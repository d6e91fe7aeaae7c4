"""The chosen host and the way in it are the best of all ways of all hosts, by a slow evaluation."""

from random import Random

import pytest

from bench.quality.cloud import TraceCloud
from features.fragmentation.tests.support.slow_values import (
    SlowValues,
    after,
    all_ways,
    amounts_of,
    pack,
    some_asked,
    some_hosts,
)


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(n, marks=pytest.mark.soak) for n in range(4, 100))]
)
def test_the_choice_is_the_best_way_of_the_best_host(seed: int) -> None:
    chance = Random(seed)
    cloud = TraceCloud(some_hosts(chance), pack(), seed)
    try:
        for _ in range(30):
            asked, (free, whole) = some_asked(chance), amounts_of(cloud)
            chosen = cloud.place(asked)
            values = SlowValues(cloud.scheduler.demand.usual(), whole)
            costs = {}
            for host, of_host in zip(free, whole, strict=True):
                before = values.of(host, of_host)
                for way in all_ways(asked, host):
                    key = frozenset((uuid, *sorted(of.items())) for uuid, of in way.items())
                    costs[key] = values.of(after(host, way), of_host) - before
            if chosen is None:
                assert not costs
                continue
            taken = frozenset((uuid, *sorted(of.items())) for uuid, of in chosen.items())
            assert costs[taken] == pytest.approx(max(costs.values()), abs=1e-8)
    finally:
        cloud.close()

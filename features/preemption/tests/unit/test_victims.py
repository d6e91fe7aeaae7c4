"""Victims of a preemption are minimal: compared with an exhaustive search on small random clouds."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations

import numpy as np
import pytest

from bus.packing import RowPacking
from features.preemption.core import victims
from features.preemption.core.victims import (
    CrowdedHost,
    Replaceable,
    RequestedParts,
    VictimChoice,
    choose_victims,
)

SCALE = np.array([16.0, 32.0])
Measure = tuple[int, int, float]  # highest priority, number of victims, size


def measure_of(some: Sequence[Replaceable]) -> Measure:
    size = round(sum(float((each.amounts / SCALE).sum()) for each in some), 9)
    return max((each.priority for each in some), default=-1), len(some), size


def chosen_by(choices: Sequence[VictimChoice]) -> list[Replaceable]:
    return [each for choice in choices for each in choice.victims]


def after(free: np.ndarray, deleted: Sequence[Replaceable]) -> np.ndarray:
    return np.array(np.sum([free, *(each.amounts for each in deleted)], axis=0))


def is_free(free: np.ndarray, demand: np.ndarray) -> bool:
    return bool(((free >= demand) | (demand == 0)).all())


def fits(
    hosts: Sequence[CrowdedHost], packing: RowPacking, wanted: RequestedParts, choices: Sequence[VictimChoice]
) -> bool:
    """Return whether choices place all instances within amounts and limits, in one domain."""
    by_at = {host.at: host for host in hosts}
    left = dict(wanted.left or {})
    for choice in choices:
        host = by_at[choice.at]
        free = after(packing.free[choice.at], choice.victims)
        demand = np.array(choice.placed) @ wanted.amounts
        if not is_free(free, demand) or sum(choice.placed) > host.limit:
            return False
        if any(several > most for several, most in zip(choice.placed, host.most, strict=True)):
            return False
        left[host.spread] = left.get(host.spread, 0) - sum(choice.placed)
    placed = np.sum([choice.placed for choice in choices], axis=0).tolist()
    domains = {by_at[choice.at].domain for choice in choices}
    within = wanted.left is None or min(left.values()) >= 0
    return placed == list(wanted.counts) and len(domains) == 1 and within


def assignments(
    hosts: Sequence[CrowdedHost], wanted: RequestedParts, deleted: Sequence[Replaceable]
) -> Iterator[tuple[VictimChoice, ...]]:
    """Yield all ways to spread the instances over the hosts, as if these victims were deleted."""
    if not hosts:
        yield ()
        return
    host, *rest = hosts
    victims_there = tuple(each for each in host.instances if each in deleted)
    for placed in np.ndindex(*(count + 1 for count in wanted.counts)):
        left = tuple(int(count - some) for count, some in zip(wanted.counts, placed, strict=True))
        for others in assignments(rest, replace(wanted, counts=left), deleted):
            yield (VictimChoice(host.at, placed, victims_there), *others) if any(placed) else others


def exhaustive(hosts: Sequence[CrowdedHost], packing: RowPacking, wanted: RequestedParts) -> Measure | None:
    """Return the least measure of all sets of victims after whose deletion the request fits."""
    every = [each for host in hosts for each in host.instances]
    ways = [way for way in assignments(hosts, wanted, every) if fits(hosts, packing, wanted, way)]
    measures = []
    for way in ways:
        by_at = {choice.at: choice for choice in way}
        of_hosts = []
        for host in hosts:
            if (choice := by_at.get(host.at)) is not None:
                sets = chain.from_iterable(
                    combinations(host.instances, number) for number in range(len(host.instances) + 1)
                )
                demand = np.array(choice.placed) @ wanted.amounts
                of_hosts.append(
                    [some for some in sets if is_free(after(packing.free[host.at], some), demand)]
                )
        measures.append(least(of_hosts))
    return min(measures, default=None)


def least(of_hosts: Sequence[Sequence[Sequence[Replaceable]]]) -> Measure:
    """Return the least measure with one of the sets of each host."""
    for highest in range(-1, 4):
        best = [
            min((measure_of(some)[1:] for some in sets if measure_of(some)[0] <= highest), default=None)
            for sets in of_hosts
        ]
        if all(each is not None for each in best):
            found = [each for each in best if each is not None]
            return highest, sum(each[0] for each in found), round(sum(each[1] for each in found), 9)
    raise AssertionError


def a_cloud(chance: random.Random, gang: bool) -> tuple[list[CrowdedHost], RowPacking, RequestedParts]:
    """Return hosts with instances, and a request for one instance or for a gang of up to two roles."""
    parts = chance.randint(1, 2) if gang else 1
    limited = gang and chance.random() < 0.5
    hosts, amounts_free = [], []
    for at in range(chance.randint(1, 4)):
        free, instances = SCALE.copy(), list[Replaceable]()
        for _ in range(chance.randint(0, 5 if gang else 7)):
            amounts = np.array([float(chance.randint(1, 6)), float(chance.choice([0, 2, 4, 8, 12]))])
            if (amounts <= free).all():
                free -= amounts
                instances.append(Replaceable(f"{at}-{len(instances)}", chance.randint(0, 3), amounts))
        free[1] -= chance.choice((0.0, 0.0, 0.0, 0.0, 12.0, 40.0))  # overcommitted after a loss of capacity
        amounts_free.append(free)
        hosts.append(
            CrowdedHost(
                at, [each for each in instances if each.priority < 3],
                most=tuple(chance.choice((0, 3, 3, 3)) for _ in range(parts)) if gang else (1,),
                limit=chance.choice((1, 2, 9)) if gang else 9,
                domain=chance.randint(1, 2) if gang else 0,
                spread=chance.randint(1, 2) if limited else 0,
            )
        )  # fmt: skip
    most = 10 if gang else 16
    asked = [
        [float(chance.randint(1, most)), float(chance.choice((0, 1, 1, 1)) * chance.randint(1, 2 * most))]
        for _ in range(parts)
    ]
    counts = tuple(chance.randint(1, 2) for _ in range(parts)) if gang else (1,)
    left = {domain: chance.randint(1, 2) for domain in (1, 2)} if limited else None
    packing = RowPacking(("VCPU", "MEMORY_MB"), np.array(amounts_free), np.tile(SCALE, (len(hosts), 1)))
    return hosts, packing, RequestedParts(np.array(asked), counts, left)


@pytest.mark.parametrize(
    ("gang", "clouds"), [(False, 60), (True, 200), pytest.param(True, 3000, marks=pytest.mark.soak)]
)
def test_victims_are_minimal_by_priority_then_number_then_size(gang: bool, clouds: int) -> None:
    chance, with_victims = random.Random(31), 0
    for _ in range(clouds):
        hosts, packing, wanted = a_cloud(chance, gang)
        found, best = choose_victims(hosts, packing, wanted), exhaustive(hosts, packing, wanted)
        assert (found is None) == (best is None)
        if found is not None:
            with_victims += any(choice.victims for choice in found)
            assert measure_of(chosen_by(found)) == best
            assert fits(hosts, packing, wanted, found)
    assert with_victims > clouds / 6


@pytest.mark.parametrize("limit", ["MOST_SETS", "MOST_CELLS"])
def test_a_search_that_is_too_large_still_gets_victims_of_which_each_is_needed(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(victims, limit, 1)
    chance, found_some = random.Random(7), 0
    for _ in range(100):
        hosts, packing, wanted = a_cloud(chance, limit == "MOST_CELLS")
        found, best = choose_victims(hosts, packing, wanted), exhaustive(hosts, packing, wanted)
        if found is None:
            assert limit == "MOST_CELLS" or best is None
            continue
        found_some += 1
        assert best is not None and measure_of(chosen_by(found)) >= best
        assert fits(hosts, packing, wanted, found)
        for choice in found:
            for at in range(len(choice.victims)):
                fewer = replace(choice, victims=choice.victims[:at] + choice.victims[at + 1 :])
                assert not fits(hosts, packing, wanted, [fewer if each is choice else each for each in found])
    assert found_some > 30

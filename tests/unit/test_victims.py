"""Victims of a preemption are minimal: compared with an exhaustive search on small random clouds."""

import random
from itertools import combinations

import numpy as np
import pytest

from bus.domains import DomainConstraints, GangRole
from bus.messages import BuildRequested
from bus.requests import Flavor, Hints
from scheduler_worker.core import victims
from scheduler_worker.core.victims import CrowdedHost, Replaceable, choose_victims
from scheduler_worker.victim_search import bars_preemption
from tests.support.ids import uid
from tests.support.scheduler_builders import a_request

CLOUDS = 2000


def test_victims_are_minimal_by_priority_then_number_then_size() -> None:
    chance, with_victims = random.Random(31), 0
    for _ in range(CLOUDS):
        hosts, demand, scale = _cloud(chance)
        found, best = choose_victims(hosts, demand, scale), _exhaustive(hosts, demand, scale)
        assert (found is None) == (best is None)
        if found is not None:
            with_victims += 1
            assert found.measure == best
            host = next(host for host in hosts if host.at == found.at)
            assert (host.free + sum(each.amounts for each in found.victims) >= demand).all()
    assert with_victims > CLOUDS / 3


def test_a_host_with_too_many_sets_to_compare_still_gets_victims_of_which_each_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(victims, "MOST_SETS", 1)
    chance = random.Random(7)
    for _ in range(300):
        hosts, demand, scale = _cloud(chance)
        found = choose_victims(hosts, demand, scale)
        assert (found is None) == (_exhaustive(hosts, demand, scale) is None)
        if found is not None:
            host = next(host for host in hosts if host.at == found.at)
            for left_out in found.victims:
                rest = [each.amounts for each in found.victims if each is not left_out]
                assert (host.free + np.sum([np.zeros(2), *rest], axis=0) < demand).any()


@pytest.mark.parametrize(
    ("request_", "bars"),
    [
        (a_request(instances=2), ""),
        (a_request(hints=Hints(group=uid(1, "9"))), ""),
        (a_request(instances=2, hints=Hints(group=uid(1, "9"))), "server group"),
        (a_request(hints=Hints(reservation=uid(1, "7"))), "reservation"),
        (a_request(topology=DomainConstraints(pack="rack")), "topology"),
        (a_request(roles=(GangRole(name="worker", flavor=Flavor(name="m")),)), "roles"),
    ],
)
def test_requests_whose_hosts_depend_on_each_other_do_not_preempt(
    request_: BuildRequested, bars: str
) -> None:
    assert (bars_preemption(request_) == "") == (bars == "") and bars in bars_preemption(request_)


def _cloud(chance: random.Random) -> tuple[list[CrowdedHost], np.ndarray, np.ndarray]:
    scale = np.array([16.0, 32.0])
    hosts = []
    for at in range(chance.randint(1, 4)):
        free, instances = scale.copy(), list[Replaceable]()
        for _ in range(chance.randint(0, 7)):
            amounts = np.array([float(chance.randint(1, 6)), float(chance.choice([0, 2, 4, 8, 12]))])
            if (amounts <= free).all():
                free -= amounts
                instances.append(Replaceable(f"{at}-{len(instances)}", chance.randint(0, 3), amounts))
        hosts.append(CrowdedHost(at, free, [each for each in instances if each.priority < 3]))
    return hosts, np.array([float(chance.randint(1, 16)), float(chance.randint(1, 32))]), scale


def _exhaustive(hosts: list[CrowdedHost], demand: np.ndarray, scale: np.ndarray) -> object:
    """Return the smallest measure of all sets of victims of all hosts that do not fit the demand already."""
    measures = []
    for host in hosts:
        if (host.free >= demand).all():
            continue
        for number in range(1, len(host.instances) + 1):
            for some in combinations(host.instances, number):
                if (host.free + sum(each.amounts for each in some) >= demand).all():
                    size = round(sum(float((each.amounts / scale).sum()) for each in some), 9)
                    measures.append((max(each.priority for each in some), number, size, host.at))
    return min(measures, default=None)

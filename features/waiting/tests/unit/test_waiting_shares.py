"""The order of waiting requests of several projects."""

import math
import random
from collections import Counter
from itertools import count

import pytest

from features.waiting.core.shares import DECAY_SECONDS, Shares
from features.waiting.tests.support.plain_cloud import PlainCloud
from features.waiting.tests.support.waiting_stores import waiting_store_of
from scheduler_worker.extension import ChoicePolicy
from tests.support.scheduler_builders import FakePlacement, a_request
from tests.support.schedulers import scheduler_of

SIZE = {"VCPU": 0.01}
KINDS = {"small": {"VCPU": 1}, "medium": {"VCPU": 2}, "large": {"VCPU": 4}}


def a_cloud(hosts: int = 10) -> PlainCloud:
    cloud = PlainCloud({f"h{number}": {"VCPU": 8} for number in range(hosts)}, KINDS)
    for host in cloud.hosts.values():
        host.free["VCPU"] = 0
    return cloud


def turnover(cloud: PlainCloud, releases: int, chance: random.Random, seconds: float = 1.0) -> list[str]:
    """Release capacity on random hosts; return the requests that were placed, in order."""
    before = len(cloud.placed)
    for number in range(releases):
        root = chance.choice([*cloud.hosts])
        cloud.hosts[root].free["VCPU"] = 0
        cloud.frees(root, VCPU=4)
        cloud.plays(number * seconds)
    return [request for request, _ in cloud.placed[before:]]


def test_a_project_with_one_waiting_request_is_served_before_the_rest_of_a_flood() -> None:
    cloud = a_cloud()
    for number in range(1000):
        cloud.wait(number, "small", since=number, project="flood")
    turnover(cloud, 10, random.Random(1))
    cloud.wait(5000, "small", since=2000.0, project="lab")
    assert "r05000" in turnover(cloud, 1, random.Random(2))


def test_priority_precedes_the_shares_of_projects() -> None:
    cloud = a_cloud(hosts=1)
    for number in range(8):
        cloud.wait(number, "small", since=number, project="flood", priority=5)
    cloud.wait(8, "small", since=8, project="lab")
    assert turnover(cloud, 2, random.Random(1)) == [f"r0000{number}" for number in range(8)]


def test_released_capacity_is_divided_by_the_weights() -> None:
    weights, chance = {"p1": 1.0, "p2": 2.0, "p4": 4.0}, random.Random(3)
    cloud, numbers = a_cloud(hosts=20), count()
    cloud.queues.shares.set_weights(weights)
    project_of: dict[str, tuple[str, str]] = {}
    for project in ("p4", "p1", "p2"):  # each project arrives with all its requests
        for _ in range(1000):
            number, kind = next(numbers), chance.choice([*KINDS])
            project_of[f"r{number:05}"] = project, kind
            cloud.wait(number, kind, since=number, project=project)
    served = Counter[str]()
    for request in turnover(cloud, 350, chance, 60.0):
        project, kind = project_of[request]
        served[project] += KINDS[kind]["VCPU"]
    whole = sum(served.values())
    for project, weight in weights.items():
        # a host held for the first request of each queue gives the smallest project a little more
        assert served[project] / whole == pytest.approx(weight / 7, rel=0.08)


def test_a_turn_comes_an_hour_later_for_each_e_fold_of_the_share() -> None:
    shares = Shares()
    shares.give("p1", SIZE, 1, 100.0)
    once = shares.turn("p1", 100.0)
    assert shares.turn("p2", 100.0) == 100.0
    shares.give("p1", {"VCPU": 0.01 * (math.e - 1)}, 1, 100.0)
    assert shares.turn("p1", 100.0) == pytest.approx(once + DECAY_SECONDS)
    assert shares.turn("p1", 1000.0) == pytest.approx(once + DECAY_SECONDS)  # it does not change with time


def test_equal_requests_of_two_projects_are_of_two_classes() -> None:
    """Also if no filter reads the project."""
    scheduler = scheduler_of(FakePlacement(), policy=ChoicePolicy(rules=(), weighers=()))
    store = waiting_store_of(scheduler)
    requests = [a_request(number, project=project) for number, project in enumerate(("p1", "p2", "p2"))]
    assert len({store.kind(order) for order in scheduler.begin(requests)}) == 2

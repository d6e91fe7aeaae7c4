"""The order of waiting requests of several projects."""

import random
from collections import Counter
from itertools import count

import pytest

from bus.sql.database import Database
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.waiting_shares import REMEMBERED_SECONDS, WaitingShares
from scheduler_worker.waiting.store import WaitingStore
from tests.support.plain_cloud import PlainCloud
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
        cloud.park(number, "small", since=number, project="flood")
    turnover(cloud, 10, random.Random(1))
    cloud.park(5000, "small", since=2000.0, project="lab")
    assert "r05000" in turnover(cloud, 1, random.Random(2))


def test_a_single_request_of_another_class_is_served_before_the_rest_of_a_flood() -> None:
    cloud = a_cloud(hosts=1)
    for number in range(1000):
        cloud.park(number, "small", since=number, project="flood")
    turnover(cloud, 3, random.Random(1))
    cloud.park(5000, "large", since=2000.0, project="lab")
    assert "r05000" in turnover(cloud, 2, random.Random(2))


def test_priority_precedes_the_shares_of_projects() -> None:
    cloud = a_cloud(hosts=1)
    for number in range(8):
        cloud.park(number, "small", since=number, project="flood", priority=5)
    cloud.park(8, "small", since=8, project="lab")
    assert turnover(cloud, 2, random.Random(1)) == [f"r0000{number}" for number in range(8)]


def test_inside_a_project_age_decides_between_classes() -> None:
    cloud, chance = a_cloud(hosts=1), random.Random(1)
    kinds = [chance.choice(("medium", "large")) for _ in range(40)]
    for number, kind in enumerate(kinds):
        cloud.park(number, kind, since=number, project="p1")
    served = turnover(cloud, 60, chance)
    assert [r for r in served if kinds[int(r[1:])] == "large"] == [
        f"r{number:05}" for number, kind in enumerate(kinds) if kind == "large"
    ]
    # The requests of one class that fit on a released host are served together.
    assert max(abs(place - int(request[1:])) for place, request in enumerate(served)) <= 4


@pytest.mark.parametrize("kinds", [("small",), ("small", "medium", "large")])
@pytest.mark.parametrize("seconds", [0.01, 60.0])
def test_released_capacity_is_divided_by_the_weights(kinds: tuple[str, ...], seconds: float) -> None:
    weights, chance = {"p1": 1.0, "p2": 2.0, "p4": 4.0}, random.Random(3)
    cloud, numbers = a_cloud(hosts=4), count()
    cloud.queues.shares.set_weights(weights)
    project_of: dict[str, tuple[str, str]] = {}
    for project in ("p4", "p1", "p2"):  # each project arrives with all its requests
        for _ in range(2000):
            number, kind = next(numbers), chance.choice(kinds)
            project_of[f"r{number:05}"] = project, kind
            cloud.park(number, kind, since=number, project=project)
    served = Counter[str]()
    for request in turnover(cloud, 700, chance, seconds):
        project, kind = project_of[request]
        served[project] += KINDS[kind]["VCPU"]
    whole = sum(served.values())
    for project, weight in weights.items():
        assert served[project] / whole == pytest.approx(weight / 7, rel=0.05)


def test_a_project_saves_nothing_up_while_it_has_no_requests() -> None:
    cloud, chance = a_cloud(), random.Random(4)
    for number in range(2000):
        cloud.park(number, "small", since=number, project=f"p{number % 2}")
    turnover(cloud, 100, chance)
    for number in range(2000, 3000):
        cloud.park(number, "small", since=number, project="late")
    late = [request for request in turnover(cloud, 60, chance) if request >= "r02000"]
    assert len(late) == pytest.approx(60 * 4 / 3, abs=4)


def test_what_was_served_long_ago_counts_little() -> None:
    shares = WaitingShares()
    for _ in range(10):
        shares.serve("p1", SIZE, 0.0)
    shares.serve("p2", SIZE, 5 * REMEMBERED_SECONDS)
    assert shares.of("p2") > shares.of("p1")
    shares.serve("p2", SIZE, 1000 * REMEMBERED_SECONDS)
    assert shares.of("p1") == 0.0


def test_a_changed_weight_counts_from_now_on() -> None:
    shares = WaitingShares()
    shares.serve("p1", SIZE, 0.0)
    before = shares.of("p1")
    shares.set_weights({"p1": 10.0})
    shares.serve("p1", SIZE, 0.0)
    assert shares.of("p1") == pytest.approx(before * 1.1)


def test_equal_requests_of_two_projects_are_of_two_classes() -> None:
    """Also if no filter reads the project."""
    scheduler = scheduler_of(FakePlacement(), policy=ChoicePolicy(rules=(), weighers=()))
    store = WaitingStore(scheduler, Database("sqlite+aiosqlite://"), lambda: None)
    requests = [a_request(number, project=project) for number, project in enumerate(("p1", "p2", "p2"))]
    assert len({store.kind(order) for order, _ in scheduler.begin(requests)}) == 2

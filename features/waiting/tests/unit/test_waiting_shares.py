"""The order of waiting requests of several projects."""

import math
import random
from collections import Counter
from itertools import count

import pytest

from features.waiting.core.shares import DECAY_SECONDS, Shares
from features.waiting.core.waiting_queue import NextRequest
from features.waiting.tests.support.plain_cloud import PlainCloud
from features.waiting.tests.support.waiting_stores import waiting_store_of
from scheduler_worker.core.policy import ChoicePolicy
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


def test_a_single_request_of_another_class_is_served_before_the_rest_of_a_flood() -> None:
    cloud = a_cloud(hosts=1)
    for number in range(1000):
        cloud.wait(number, "small", since=number, project="flood")
    turnover(cloud, 3, random.Random(1))
    cloud.wait(5000, "large", since=2000.0, project="lab")
    assert "r05000" in turnover(cloud, 2, random.Random(2))


def test_priority_precedes_the_shares_of_projects() -> None:
    cloud = a_cloud(hosts=1)
    for number in range(8):
        cloud.wait(number, "small", since=number, project="flood", priority=5)
    cloud.wait(8, "small", since=8, project="lab")
    assert turnover(cloud, 2, random.Random(1)) == [f"r0000{number}" for number in range(8)]


def test_inside_a_project_age_decides_between_classes() -> None:
    cloud, chance = a_cloud(hosts=1), random.Random(1)
    kinds = [chance.choice(("medium", "large")) for _ in range(40)]
    for number, kind in enumerate(kinds):
        cloud.wait(number, kind, since=number, project="p1")
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
    cloud, numbers = a_cloud(hosts=20), count()
    cloud.queues.shares.set_weights(weights)
    project_of: dict[str, tuple[str, str]] = {}
    for project in ("p4", "p1", "p2"):  # each project arrives with all its requests
        for _ in range(2000):
            number, kind = next(numbers), chance.choice(kinds)
            project_of[f"r{number:05}"] = project, kind
            cloud.wait(number, kind, since=number, project=project)
    served = Counter[str]()
    for request in turnover(cloud, 700, chance, seconds):
        project, kind = project_of[request]
        served[project] += KINDS[kind]["VCPU"]
    whole = sum(served.values())
    for project, weight in weights.items():
        assert served[project] / whole == pytest.approx(weight / 7, rel=0.05)


def test_a_project_that_begins_to_wait_is_first_given_as_much_as_others_were_recently() -> None:
    cloud, chance = a_cloud(), random.Random(4)
    for number in range(2000):
        cloud.wait(number, "small", since=number, project=f"p{number % 2}")
    turnover(cloud, 50, chance)
    for number in range(2000, 3000):
        cloud.wait(number, "small", since=number, project="late")
    late = [request >= "r02000" for request in turnover(cloud, 55, chance)]
    assert sum(late[:90]) >= 75  # the others have 100 each; some hosts are reserved for their first requests
    assert sum(late) == pytest.approx((200 + len(late)) / 3, abs=8)


def steps_until_placed(cloud: PlainCloud, request: str, chance: random.Random, steps: int) -> int:
    """Release 1 VCPU on a random host in each step; return the step in which the request was placed."""
    for step in range(steps):
        cloud.frees(
            chance.choice([root for root, host in cloud.hosts.items() if host.free["VCPU"] < 8]), VCPU=1
        )
        if any(placed == request for placed, _ in cloud.plays(step * 60.0)):
            return step
        number = 10_000 + step
        cloud.wait(number, "small", since=float(number), project=f"new{number}" if step % 2 else "stream")
    raise AssertionError(f"{request} waits")


def test_small_requests_of_any_project_do_not_starve_a_large_one() -> None:
    cloud, chance = a_cloud(), random.Random(5)
    cloud.kinds["whole"] = {"VCPU": 8}
    for number in range(100):
        cloud.wait(number, "small", since=number, project="flood")
    turnover(cloud, 10, chance)
    cloud.wait(5000, "whole", since=100.0, project="flood")
    assert steps_until_placed(cloud, "r05000", chance, 500) > 0


def a_cloud_for_which_fifty_projects_wait() -> PlainCloud:
    cloud = a_cloud()
    for number in range(50):
        cloud.wait(number, "large", since=number, project=f"p{number}")
    cloud.plays()
    return cloud


def test_a_released_host_is_tried_only_while_it_has_room() -> None:
    cloud = a_cloud_for_which_fifty_projects_wait()
    cloud.frees("h1", VCPU=4)
    assert [turn.request for turn in cloud.queues.next_requests(0.0)] == ["r00000"]
    cloud.place("large", ())
    cloud.leave("r00000")
    assert cloud.queues.next_requests(0.0) == [] and not cloud.queues.has_work


def test_equal_requests_of_several_projects_share_the_search_for_hosts() -> None:
    cloud = a_cloud_for_which_fifty_projects_wait()
    cloud.asked.clear()
    cloud.frees("h1", VCPU=4)
    cloud.queues.settle(0.0)
    assert len(cloud.asked) == 1


def a_cloud_that_tries_a_request_of_p1() -> tuple[PlainCloud, NextRequest]:
    cloud = a_cloud()
    cloud.wait(0, "large", project="p1")
    cloud.plays()
    cloud.frees("h1", VCPU=4)
    [turn] = cloud.queues.next_requests(0.0)
    return cloud, turn


def test_a_request_that_leaves_while_it_is_tried_is_not_counted() -> None:
    cloud, turn = a_cloud_that_tries_a_request_of_p1()
    assert cloud.queues.shares.turn("p1", 0.0) > 0.0
    cloud.leave(turn.request)  # it was cancelled, or waits for quota now
    assert cloud.queues.shares.turn("p1", 0.0) == 0.0


def test_a_request_is_not_delayed_by_an_attempt_of_its_project_that_fails_later() -> None:
    cloud, turn = a_cloud_that_tries_a_request_of_p1()
    cloud.wait(1, "small", since=1, project="p1")
    cloud.queues.settle(0.0)
    cloud.hosts["h1"].free["VCPU"] = 0
    cloud.queues.requeue(turn.request)
    cloud.queues.shares.give("p2", SIZE, 1, 0.0)
    cloud.wait(2, "medium", since=2, project="p2")
    cloud.plays(1.0)
    closed = [cloud.queues.reserved.own[root] for root in cloud.queues.reserved_before("r00001")]
    assert all(each.rank.project == "p1" for each in closed)
    assert cloud.queues._turns["r00001"] <= 1.0


def test_a_changed_weight_of_another_project_does_not_delay_a_request() -> None:
    cloud, chance = a_cloud(), random.Random(5)
    cloud.kinds["whole"] = {"VCPU": 8}
    cloud.queues.shares.give("flood", SIZE, 50, 0.0)
    cloud.wait(5000, "whole", project="flood")
    for step in range(400):
        cloud.queues.set_weights({"other": float(step)})
        cloud.frees(chance.choice([*cloud.hosts]), VCPU=1)
        if cloud.plays(step * 60.0) and "r05000" not in cloud.waiting:
            return
        cloud.wait(step, "small", since=float(step + 1), project=f"new{step}")
    raise AssertionError("the large request waits")


def test_a_turn_comes_an_hour_later_for_each_e_fold_of_the_share() -> None:
    shares = Shares()
    shares.give("p1", SIZE, 1, 100.0)
    once = shares.turn("p1", 100.0)
    assert shares.turn("p2", 100.0) == 100.0
    shares.give("p1", {"VCPU": 0.01 * (math.e - 1)}, 1, 100.0)
    assert shares.turn("p1", 100.0) == pytest.approx(once + DECAY_SECONDS)
    assert shares.turn("p1", 1000.0) == pytest.approx(once + DECAY_SECONDS)  # it does not change with time


def test_capacity_that_was_given_long_ago_does_not_count() -> None:
    shares = Shares()
    shares.give("p1", SIZE, 1, 0.0)
    late = shares.turn("p1", 0.0) + 1.0
    assert shares.turn("p1", late) == late
    shares.give("p1", SIZE, 1, late)
    shares.give("p2", SIZE, 1, late)
    assert shares.turn("p1", late) == pytest.approx(shares.turn("p2", late), abs=1.0)


def test_the_resource_class_with_the_largest_part_decides() -> None:
    shares = Shares()
    shares.give("p1", {"VCPU": 0.2, "MEMORY_MB": 0.1}, 1, 0.0)
    before = shares.turn("p1", 0.0)
    shares.give("p1", {"MEMORY_MB": 0.05}, 1, 0.0)
    assert shares.turn("p1", 0.0) == before
    shares.give("p1", {"MEMORY_MB": 0.1}, 1, 0.0)
    assert shares.turn("p1", 0.0) > before


def test_a_request_that_got_no_host_is_taken_back() -> None:
    shares = Shares()
    shares.give("p1", SIZE, 2, 0.0)
    before = shares.turn("p1", 0.0)
    shares.give("p1", SIZE, 3, 0.0)
    for _ in range(3):
        shares.take_back("p1", SIZE, 0.0)
    assert shares.turn("p1", 0.0) == pytest.approx(before)


def test_a_request_is_taken_back_with_what_it_counts_now() -> None:
    shares, other = Shares(), Shares()
    shares.give("p1", SIZE, 1, 0.0)
    for each in (shares, other):
        each.give("p1", SIZE, 1, DECAY_SECONDS)
    shares.take_back("p1", SIZE, 0.0)
    assert shares.turn("p1", DECAY_SECONDS) == pytest.approx(other.turn("p1", DECAY_SECONDS))


@pytest.mark.parametrize("weight", [1.0, 5.0])
def test_the_number_of_requests_until_a_turn_is_that_of_giving_them_one_by_one(weight: float) -> None:
    chance = random.Random(6)
    for _ in range(100):
        shares, size = Shares(), {"VCPU": chance.random() / 100, "MEMORY_MB": chance.random() / 100}
        shares.set_weights({"p1": weight})
        shares.give("p1", {"VCPU": chance.random() / 10, "DISK_GB": chance.random()}, 1, 0.0)
        now = chance.choice((0.0, 3000.0))
        turn = shares.turn("p1", now) + chance.random() * 4000
        expected = shares.requests_until(turn, "p1", size, now)
        several = 0
        while shares.turn("p1", now) <= turn:
            several += 1
            assert shares.turn_after("p1", size, 1, now) > shares.turn("p1", now) - 1e-6
            shares.give("p1", size, 1, now)
        assert expected == several


def test_a_weight_divides_the_share() -> None:
    shares = Shares()
    for project in ("p1", "p2"):
        shares.give(project, SIZE, 3, 0.0)
    assert shares.set_weights({"p1": 3.0})
    shares.give("p3", SIZE, 1, 0.0)
    assert shares.turn("p1", 0.0) == pytest.approx(shares.turn("p3", 0.0))
    assert not shares.set_weights({"p1": 3.0})


def test_equal_requests_of_two_projects_are_of_two_classes() -> None:
    """Also if no filter reads the project."""
    scheduler = scheduler_of(FakePlacement(), policy=ChoicePolicy(rules=(), weighers=()))
    store = waiting_store_of(scheduler)
    requests = [a_request(number, project=project) for number, project in enumerate(("p1", "p2", "p2"))]
    assert len({store.kind(order) for order in scheduler.begin(requests)}) == 2

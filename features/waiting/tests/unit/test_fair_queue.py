"""The order in which requests of several projects are served."""

import random
import time
from collections import Counter
from collections.abc import Mapping

import pytest

from features.waiting.core.fair_queue import SERVED_SECONDS, FairItem, FairQueue

WEIGHTS = {"gold": 4.0, "silver": 2.0, "bronze": 1.0}


def item(project: str, at: float = 0.0, priority: int = 0, **size: float) -> FairItem:
    return FairItem(project, (-priority, at, f"{project}-{at}"), size or {"VCPU": 0.001}, None)


def weighted(weights: Mapping[str, float]) -> FairQueue:
    queue = FairQueue()
    queue.set_weights(weights)
    return queue


def popped(queue: FairQueue, most: int) -> list[FairItem]:
    return [found for _ in range(most) if (found := queue.pop()) is not None]


def test_a_single_request_precedes_the_flood_that_arrived_before_it() -> None:
    queue = FairQueue()
    for at in range(1000):
        queue.push(item("flood", at))
    popped(queue, 100)
    queue.push(item("single", 5000))
    assert "single" in {each.project for each in popped(queue, 2)}


def test_shares_follow_the_weights_whatever_the_sizes_and_arrivals() -> None:
    for seed in range(5):
        chance = random.Random(seed)
        queue = weighted(WEIGHTS)
        for project in WEIGHTS:
            several = chance.choice((1, 2, 8))  # projects with large and with small requests
            for at in range(4000):
                queue.push(item(project, at, VCPU=several * chance.uniform(1e-4, 3e-4), DISK_GB=1e-5))
        served = dict.fromkeys(WEIGHTS, 0.0)
        largest = 8 * 3e-4
        for _ in range(2000):
            found = queue.pop()
            assert found is not None
            served[found.project] += found.size["VCPU"]
            for_weight = [served[project] / weight for project, weight in WEIGHTS.items()]
            assert max(for_weight) - min(for_weight) <= 2 * largest
        total, weights = sum(served.values()), sum(WEIGHTS.values())
        for project, weight in WEIGHTS.items():
            assert abs(served[project] / total / (weight / weights) - 1) < 0.05


def test_the_largest_share_of_any_class_counts() -> None:
    queue = FairQueue()
    for at in range(1000):
        queue.push(item("cores", at, VCPU=0.004, MEMORY_MB=0.001))
        queue.push(item("memory", at, VCPU=0.001, MEMORY_MB=0.002))
    served = Counter(each.project for each in popped(queue, 300))
    assert served == {"cores": 100, "memory": 200}


def test_the_order_is_priority_then_share_then_age() -> None:
    queue = FairQueue()
    for at, priority in ((3, 0), (1, 0), (4, 5), (2, 5)):
        queue.push(item("p", at, priority))
    queue.push(item("q", 5, 1))
    queue.push(item("q", 0))
    assert [each.key[1] for each in popped(queue, 6)] == [2, 4, 5, 0, 1, 3]


@pytest.mark.parametrize("batch", [1, 32, 128])
@pytest.mark.parametrize("late", [0.0, 0.1, 0.36, 1.0])
def test_from_the_arrival_of_its_first_request_on_a_project_is_served_exactly_its_share(
    late: float, batch: int
) -> None:
    """In the first three seconds of a flood, the project with the smallest weight lacks only its share of
    what was served before its first request: of 500 requests a second for 0.36 s, 12 % of its share.
    """
    now, rate, weights, served = [0.0], 500, {"p1": 1.0, "p2": 2.0, "p4": 4.0}, list[tuple[float, str]]()
    queue = FairQueue(lambda: now[0])
    queue.set_weights(weights)
    begins = {"p1": late, "p2": 0.0, "p4": 0.0}

    def arrive() -> None:
        for project in [project for project, at in begins.items() if at <= now[0]]:
            del begins[project]
            for at in range(3000):
                queue.push(item(project, at, VCPU=1e-4))

    while now[0] < 3.0:
        arrive()
        handled, began = popped(queue, batch), now[0]
        now[0] = min([at for at in begins.values() if at < began + batch / rate], default=now[0])
        arrive()  # also while a batch is handled
        now[0] = began + batch / rate
        for each in handled:
            queue.done(each)
        served += [(now[0], each.project) for each in handled]
    since = [project for at, project in served if at - batch / rate >= late]
    fair = len(since) / sum(weights.values())
    several = Counter(since)["p1"]
    missing = late * rate / sum(weights.values())  # its share of what was served before it began
    assert abs(several - fair) <= 1 + batch / 7  # one request, and the batch that was handled at the arrival
    whole = len(served) / sum(weights.values())
    assert abs(Counter(project for _, project in served)["p1"] - (whole - missing)) <= 2 + batch / 7


def test_an_absent_project_saves_nothing_up() -> None:
    queue = FairQueue()
    for at in range(1000):
        queue.push(item("present", at))
    for each in popped(queue, 500):
        queue.done(each)
    for at in range(1000):
        queue.push(item("absent", at))
    assert abs(Counter(each.project for each in popped(queue, 100))["absent"] - 50) <= 1


def test_a_project_begins_at_the_smallest_share_whatever_was_taken_and_handled() -> None:
    """The turn at which a project begins is compared with a computation from all projects."""
    now, chance = [0.0], random.Random(1)
    queue = FairQueue(lambda: now[0])
    taken: list[FairItem] = []
    for step in range(3000):
        now[0] += chance.expovariate(10.0)
        match chance.choice(("push", "push", "pop", "done", "weights" if step % 50 == 0 else "done")):
            case "push":
                queue.push(item(f"p{chance.randrange(40)}", step, VCPU=chance.uniform(1e-4, 1e-2)))
            case "pop" if (found := queue.pop()) is not None:
                taken.append(found)
            case "done" if taken:
                queue.done(taken.pop(chance.randrange(len(taken))))
            case "weights":
                queue.set_weights({"p1": chance.choice((1.0, 3.0)), "": 1.0})
        turns = [
            queue._turn(project, known, now[0])
            for project, known in queue._projects.items()
            if not known.is_idle
        ]
        assert queue._least() == pytest.approx(min([*turns, queue._reached]))
        assert queue.projects == sum(bool(known.items) for known in queue._projects.values())


def test_thousands_of_projects_begin_in_a_short_time() -> None:
    queue = FairQueue(time.monotonic)
    began = time.process_time()
    for project in range(20_000):
        queue.push(item(f"p{project}", project))
        if project % 2:
            queue.pop()
    assert time.process_time() - began < 10.0  # with a pass over all projects for each: minutes


def test_a_new_weight_applies_to_what_was_served_recently() -> None:
    now = [0.0]
    queue = FairQueue(lambda: now[0])
    for at in range(1000):
        queue.push(item("a", at))
        queue.push(item("b", at))
    popped(queue, 100)
    queue.set_weights({"a": 3.0, "": 1.0})
    assert abs(Counter(each.project for each in popped(queue, 400))["a"] - 325) <= 4
    now[0] = 10 * SERVED_SECONDS
    queue.set_weights({"a": 1.0})
    assert abs(Counter(each.project for each in popped(queue, 400))["a"] - 200) <= 4

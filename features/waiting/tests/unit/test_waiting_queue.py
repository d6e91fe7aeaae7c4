"""Wake-ups of waiting requests by changes, and their order."""

import random

import pytest

from features.waiting.core.shares import Contender
from features.waiting.tests.support.plain_cloud import PlainCloud, of_project

METAL = {f"CUSTOM_{index}": {f"CUSTOM_{index}": 1} for index in range(50)}
SMALL, LARGE = {"VCPU": 2}, {"VCPU": 8}


def full(cloud: PlainCloud) -> PlainCloud:
    for host in cloud.hosts.values():
        host.free = dict.fromkeys(host.capacity, 0)
    return cloud


def test_a_freed_host_wakes_only_its_request_class() -> None:
    hosts = {f"h{index}": {name: 1} for index, name in enumerate(METAL)}
    cloud = full(PlainCloud(hosts, METAL))
    for number in range(10_000):
        cloud.wait(number, f"CUSTOM_{number % 50}", since=number)
    assert cloud.plays() == []
    cloud.asked.clear()
    cloud.frees("h7", CUSTOM_7=1)
    assert cloud.plays() == [("r00007", "h7")]
    assert cloud.asked == ["CUSTOM_7"]


def test_higher_priority_goes_first_and_then_the_oldest() -> None:
    cloud = full(PlainCloud({"h": {"VCPU": 8}}, {"small": SMALL}))
    for number, (priority, since) in enumerate([(0, 1.0), (5, 3.0), (5, 2.0), (9, 9.0)]):
        cloud.wait(number, "small", priority=priority, since=since)
    cloud.frees("h", VCPU=8)
    assert [request for request, _ in cloud.plays()] == ["r00003", "r00002", "r00001", "r00000"]


def test_small_requests_cannot_starve_a_large_one() -> None:
    cloud = full(PlainCloud({"h1": {"VCPU": 8}, "h2": {"VCPU": 8}}, {"small": SMALL, "large": LARGE}))
    cloud.wait(0, "large", since=0)
    for number in range(1, 9):
        cloud.wait(number, "small", since=number)
    cloud.plays()
    [kept] = cloud.queues.reserved.own
    other = {"h1": "h2", "h2": "h1"}[kept]
    for _ in range(4):
        cloud.frees(other, VCPU=2)
        cloud.frees(kept, VCPU=2)
        cloud.plays()
    assert [root for _, root in cloud.placed] == [other] * 3 + [kept, other]
    assert ("r00000", kept) in cloud.placed


def test_new_requests_do_not_use_capacity_reserved_for_earlier_ones() -> None:
    cloud = full(PlainCloud({"h": {"VCPU": 8}}, {"small": SMALL, "large": LARGE}))
    cloud.hosts["h"].free["VCPU"] = 6
    cloud.wait(0, "large", priority=3, since=0)
    cloud.plays()
    assert cloud.queues.barred(Contender("", 3, 5.0)) == {"h"}
    assert cloud.queues.barred(Contender("", 4, 5.0)) == frozenset()
    assert not cloud.queues.ahead("small", Contender("", 0, 5.0))
    assert cloud.queues.ahead("large", Contender("", 3, 5.0))
    assert not cloud.queues.ahead("large", Contender("", 4, 5.0))


def test_forgotten_changes_cause_a_full_search() -> None:
    cloud = full(PlainCloud({"h": {"VCPU": 8}}, {"small": SMALL}))
    mark = cloud.queues.mark
    cloud.hosts["h"].free["VCPU"] = 8
    cloud.queues.everything()
    cloud.enter((0, 0.0, "r1"), "small", mark)
    assert cloud.plays() == [("r1", "h")]


def test_all_of_a_request_wait_together() -> None:
    cloud = full(PlainCloud({"h1": {"VCPU": 8}, "h2": {"VCPU": 8}}, {"small": SMALL}))
    cloud.wait(1, "small", needs=3)
    cloud.frees("h1", VCPU=2)
    cloud.frees("h2", VCPU=2)
    assert cloud.plays() == []
    cloud.frees("h1", VCPU=2)
    assert sorted(root for _, root in cloud.plays()) == ["h1", "h1", "h2"]


SEEDS = [*range(100), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(100, 600))]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_request_waits_that_would_fit(seed: int) -> None:
    chance = random.Random(seed)
    kinds = {f"k{index}": {"VCPU": chance.choice((1, 2, 4, 8))} for index in range(chance.randint(1, 6))}
    for asked in kinds.values():
        if chance.random() < 0.3:
            asked["GPU"] = 1
    kinds |= {f"{name} twice": asked for name, asked in kinds.items()}
    hosts = {
        f"h{index}": {"VCPU": chance.choice((4, 8, 16))} | ({"GPU": 2} if chance.random() < 0.4 else {})
        for index in range(chance.randint(1, 8))
    }
    cloud = full(PlainCloud(hosts, kinds))
    projects = ("p1", "p2", "p3")[: chance.randint(1, 3)]
    for step in range(120):
        deed = chance.random()
        root = chance.choice(list(cloud.hosts))
        host = cloud.hosts[root]
        if deed < 0.35:
            kind = chance.choice(list(kinds))
            needs = 2 if kind.endswith("twice") else 1
            new = Contender(chance.choice(projects), chance.choice((0, 0, 1)), step)
            mark = cloud.queues.mark
            tried = not cloud.queues.ahead(of_project(kind, new.project), new)
            if tried:
                cloud.queues.settle(step)
                if cloud.place(kind, cloud.queues.barred(new), needs):
                    cloud.queues.on_placed(new.project, cloud.size(kind), step)
                    continue
                if chance.random() < 0.5:
                    free(cloud, chance)
            key = (-new.priority, step, f"r{step:05}")
            cloud.enter(key, kind, mark if tried else None, needs, new.project)
        elif deed < 0.7:
            free(cloud, chance)
        elif deed < 0.8:
            host.refuses ^= {chance.choice(list(kinds))}
            cloud.queues.reported([root])
        elif deed < 0.85 and len(cloud.queues):
            cloud.leave(chance.choice([*cloud.waiting]))
        elif deed < 0.9:
            cloud.hosts[f"new{step}"] = host = type(host)({"VCPU": 8}, {"VCPU": 8})
            cloud.queues.changed([f"new{step}"])
        elif deed < 0.93 and len(cloud.hosts) > 1:
            del cloud.hosts[root]
            cloud.queues.changed([root])
        else:
            free(cloud, chance)
            turns = cloud.queues.next_requests(step)
            if turns and chance.random() < 0.7:
                free(cloud, chance)  # while they are on their way
            for turn in turns:
                cloud.take(turn)
        if chance.random() < 0.3:
            cloud.plays(step)
            assert cloud.overlooked() == [], f"at step {step}"
            cloud.queues.sweep(step)
            cloud.plays(step)
            assert cloud.rescued == []


def free(cloud: PlainCloud, chance: random.Random) -> None:
    root = chance.choice(list(cloud.hosts))
    host = cloud.hosts[root]
    freed = {name: chance.randint(0, whole - host.free.get(name, 0)) for name, whole in host.capacity.items()}
    cloud.frees(root, **freed)


def test_a_request_whose_class_is_unknown_may_enter_later() -> None:
    cloud = full(PlainCloud({"h": {"VCPU": 8}}, {}))
    with pytest.raises(KeyError):
        cloud.wait(0, "small")
    assert "r00000" not in cloud.queues
    cloud.kinds["small"] = SMALL
    cloud.wait(0, "small")
    cloud.frees("h", VCPU=2)
    assert cloud.plays() == [("r00000", "h")]

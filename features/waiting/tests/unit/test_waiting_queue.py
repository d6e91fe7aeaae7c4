"""Wake-ups of waiting requests by changes, and their order."""

import random
from collections.abc import Collection

import pytest

from features.waiting.core.fitting import HostsFound
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


@pytest.mark.parametrize(
    ("freed", "called"),
    [
        (1, []),
        (2, ["r00001"]),
        (4, ["r00001", "r00002"]),
        (8, ["r00000", "r00001", "r00002"]),  # the large one first; it keeps nothing any more
    ],
)
def test_a_freed_host_serves_the_first_fitting_request_and_then_the_next(
    freed: int, called: list[str]
) -> None:
    """The large one keeps the other host, which is nearer to what it lacks."""
    cloud = full(PlainCloud({"h": {"VCPU": 16}, "kept": {"VCPU": 16}}, {"small": SMALL, "large": LARGE}))
    cloud.hosts["kept"].free["VCPU"] = 7
    cloud.wait(0, "large", since=0)
    cloud.wait(1, "small", since=1)
    cloud.wait(2, "small", since=2)
    assert cloud.plays() == []
    assert set(cloud.queues.reserved.own) == {"kept"}
    cloud.frees("h", VCPU=freed)
    assert [request for request, _ in cloud.plays()] == called


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


def test_a_request_that_no_host_can_ever_fit_reserves_nothing() -> None:
    hosts = {"h1": {"VCPU": 4}, "gpu": {"VCPU": 4, "GPU": 1}}
    cloud = full(PlainCloud(hosts, {"small": SMALL, "large": LARGE, "gpu": {"GPU": 1}}))
    cloud.wait(0, "large", since=0)  # there is no such host at all
    cloud.wait(1, "gpu", since=1)
    cloud.wait(2, "small", since=2)
    cloud.plays()
    assert set(cloud.queues.reserved.own) == {"gpu", "h1"}  # for the gpu, and for the small one
    cloud.frees("gpu", VCPU=4)
    assert cloud.plays() == []
    cloud.frees("gpu", GPU=1)
    assert cloud.plays() == [("r00001", "gpu"), ("r00002", "gpu")]


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


def test_a_waiting_request_keeps_only_the_freed_hosts_that_it_needs() -> None:
    hosts = {f"h{number}": {"VCPU": 8} for number in range(4)}
    cloud = full(PlainCloud(hosts, {"small": SMALL, "other": SMALL}))
    cloud.wait(0, "small", since=0)
    cloud.wait(1, "other", since=1)
    cloud.queues.settle(0.0)
    for root in hosts:
        cloud.frees(root, VCPU=2)
    waiting, other = cloud.queues.next_requests(0.0)
    assert (waiting.request, waiting.excluded) == ("r00000", frozenset())
    assert other.request == "r00001" and len(other.excluded) == 1
    assert len(cloud.queues.barred(Contender("", 0, 2.0))) == 2  # a new request may use the other hosts


def test_hosts_are_kept_for_waiting_requests_beyond_those_tried_in_one_step() -> None:
    hosts = {f"h{number}": {"VCPU": 8} for number in range(4)}
    cloud = full(PlainCloud(hosts, {"small": SMALL, "other": SMALL}))
    for number in range(3):
        cloud.wait(number, "small", since=number)
    cloud.wait(3, "other", since=3)
    cloud.queues.settle(0.0)
    for root in hosts:
        cloud.frees(root, VCPU=2)
    assert [turn.request for turn in cloud.queues.next_requests(0.0, most=2)] == ["r00000", "r00001"]
    [other] = cloud.queues.next_requests(0.0, most=2)
    assert other.request == "r00003" and len(other.excluded) == 3


def test_forgotten_changes_cause_a_full_search() -> None:
    cloud = full(PlainCloud({"h": {"VCPU": 8}}, {"small": SMALL}))
    mark = cloud.queues.mark
    cloud.hosts["h"].free["VCPU"] = 8
    cloud.queues.everything()
    cloud.enter((0, 0.0, "r1"), "small", mark)
    assert cloud.plays() == [("r1", "h")]


def test_temporary_obstacles_are_checked_again_after_a_second() -> None:
    cloud = PlainCloud({"h": {"VCPU": 8}}, {"small": SMALL})
    cloud.hosts["h"].refuses.add("small")
    cloud.hosts["h"].passing = True
    cloud.enter((0, 0.0, "r1"), "small")
    assert cloud.plays(now=10.0) == []
    assert cloud.queues.next_retry() == 11.0
    cloud.hosts["h"].refuses.clear()
    assert cloud.plays(now=10.9) == []
    assert cloud.plays(now=11.0) == [("r1", "h")]


def test_a_check_due_during_trials_runs_once_when_they_return() -> None:
    cloud = PlainCloud({"h": {"VCPU": 8}, "other": {"VCPU": 2}}, {"small": SMALL})
    cloud.hosts["h"].refuses.add("small")
    cloud.hosts["h"].passing = True
    cloud.hosts["other"].free = {"VCPU": 0}
    cloud.wait(1, "small")
    assert cloud.plays(now=10.0) == []
    cloud.frees("other", VCPU=2)
    assert [turn.request for turn in cloud.queues.next_requests(10.5)] == ["r00001"]
    assert cloud.queues.next_requests(11.0) == []
    assert cloud.queues.next_retry() is None
    cloud.hosts["h"].refuses.clear()
    cloud.hosts["other"].free = {"VCPU": 0}
    cloud.queues.requeue("r00001")
    assert cloud.plays(now=11.0) == [("r00001", "h")]


def test_a_request_that_did_not_fit_is_not_woken_before_a_change() -> None:
    cloud = full(PlainCloud({"h": {"VCPU": 8}}, {"small": SMALL}))
    cloud.wait(1, "small", needs=5)  # there is never room for five
    cloud.frees("h", VCPU=8)
    assert cloud.plays() == []
    cloud.asked.clear()
    assert (cloud.plays(), cloud.asked) == ([], [])
    cloud.queues.sweep(0.0)
    assert (cloud.plays(), cloud.rescued) == ([], [])


class SeenFromAfar(PlainCloud):
    """Rules are not seen before it comes to it, as what a server group forbids is not."""

    def search(
        self, kind: str, among: Collection[str] | None, beside: Collection[str], enough: int
    ) -> HostsFound:
        refusing = {root: host.refuses for root, host in self.hosts.items()}
        try:
            for host in self.hosts.values():
                host.refuses = set()
            return super().search(kind, among, beside, enough)
        finally:
            for root, host in self.hosts.items():
                host.refuses = refusing[root]


@pytest.mark.parametrize("refusing", [{"h1", "h2", "h3"}, {"h1", "h2"}, {"h2", "h3"}])
def test_unexamined_hosts_are_tried_once_after_fruitless_ones(refusing: set[str]) -> None:
    cloud = SeenFromAfar({root: {"VCPU": 2} for root in ("h1", "h2", "h3")}, {"small": SMALL})
    for root in refusing:
        cloud.hosts[root].refuses = {"small"}
    cloud.wait(1, "small")
    cloud.queues.everything()
    turns = 0
    while called := cloud.queues.next_requests(0.0):
        turns += 1
        assert turns <= 3, "tried for ever"
        for turn in called:
            cloud.take(turn)
    assert [root for _, root in cloud.placed] == sorted({"h1", "h2", "h3"} - refusing)


def test_all_of_a_request_wait_together() -> None:
    cloud = full(PlainCloud({"h1": {"VCPU": 8}, "h2": {"VCPU": 8}}, {"small": SMALL}))
    cloud.wait(1, "small", needs=3)
    cloud.frees("h1", VCPU=2)
    cloud.frees("h2", VCPU=2)
    assert cloud.plays() == []
    cloud.frees("h1", VCPU=2)
    assert sorted(root for _, root in cloud.plays()) == ["h1", "h1", "h2"]


def test_a_request_is_tried_until_it_is_queued_again() -> None:
    cloud = full(PlainCloud({"h": {"VCPU": 8}}, {"small": SMALL}))
    for number in range(2):
        cloud.wait(number, "small", since=number)
    cloud.frees("h", VCPU=2)
    [turn] = cloud.queues.next_requests(0.0)
    assert [cloud.queues.is_tried(request) for request in cloud.waiting] == [True, False]
    cloud.queues.requeue(turn.request)
    assert [cloud.queues.is_tried(request) for request in cloud.waiting] == [False, False]


def test_a_host_that_changes_during_a_fruitless_attempt_is_tried_again() -> None:
    cloud = full(PlainCloud({"h": {"VCPU": 8}}, {"small": SMALL}))
    cloud.wait(0, "small")
    cloud.frees("h", VCPU=2)
    [turn] = cloud.queues.next_requests(0.0)
    cloud.frees("h", VCPU=2)
    cloud.queues.settle(0.0)
    cloud.queues.requeue(turn.request)
    assert [turn.request for turn in cloud.queues.next_requests(0.0)] == ["r00000"]


def test_a_change_during_a_refused_claim_does_not_shorten_the_pause_before_the_next_attempt() -> None:
    """Because the refusal itself is such a change."""
    cloud = full(PlainCloud({"h": {"VCPU": 8}}, {"small": SMALL}))
    cloud.wait(0, "small")
    cloud.frees("h", VCPU=2)
    [turn] = cloud.queues.next_requests(0.0)
    cloud.queues.changed(["h"])
    cloud.queues.requeue(turn.request, 5.0)
    assert cloud.queues.next_requests(4.9) == []
    assert [turn.request for turn in cloud.queues.next_requests(5.0)] == ["r00000"]


def test_the_sweep_finds_missed_requests() -> None:
    cloud = full(PlainCloud({"h": {"VCPU": 8}}, {"small": SMALL}))
    cloud.wait(1, "small")
    cloud.plays()
    cloud.hosts["h"].free["VCPU"] = 8
    assert cloud.plays() == []
    cloud.queues.sweep(0.0)
    assert cloud.plays() == [("r00001", "h")]
    assert cloud.rescued == ["r00001"]


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


def test_a_gang_is_tried_again_when_a_host_that_another_request_tried_is_released() -> None:
    cloud = full(PlainCloud({"a": {"VCPU": 2}, "b": {"VCPU": 2}}, {"pair": {"VCPU": 2}, "one": {"VCPU": 1}}))
    cloud.wait(0, "pair", needs=2)
    cloud.frees("a", VCPU=2)
    assert cloud.plays() == []
    cloud.wait(1, "one", since=1, priority=1)
    [one] = cloud.queues.next_requests(0.0)
    cloud.frees("b", VCPU=2)
    [pair] = cloud.queues.next_requests(0.0)
    cloud.take(pair)
    cloud.leave(one.request)  # it got no host
    assert cloud.plays() == [("r00000", "a"), ("r00000", "b")]


def test_a_host_is_tried_once_more_when_capacity_held_for_another_choice_is_released() -> None:
    cloud = full(PlainCloud({"h": {"VCPU": 2}}, {"small": {"VCPU": 2}}))
    cloud.wait(0, "small")
    cloud.frees("h", VCPU=2)
    for released in ("held for another choice", "held for this request"):
        tried = cloud.queues.next_requests(0.0)
        assert [turn.request for turn in tried] == ["r00000"], released
        cloud.queues.requeue("r00000")  # at this moment the capacity is held
        assert cloud.queues.next_requests(0.0) == []
        cloud.queues.release(["h"])
    assert cloud.queues.next_requests(0.0) == []

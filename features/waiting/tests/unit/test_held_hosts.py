"""The hosts that waiting requests hold free: for instances with a chance, within the share of a
project, and not the last host of a zone.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

from features.waiting.core.reserved_hosts import StoredHold
from features.waiting.core.shares import Contender, QueueKey
from features.waiting.tests.support.plain_cloud import PlainCloud

WHOLE, SMALL = {"VCPU": 8}, {"VCPU": 2}
KINDS = {"whole": WHOLE, "small": SMALL, "other": {"VCPU": 3}, "east": SMALL, "whole-east": WHOLE}
ZONES = {"east": "east", "whole-east": "east"}


def a_cloud(hosts: int, *, free: int, share: float = 0.1, east: int = 0) -> PlainCloud:
    """Return a cloud whose first `free` hosts are empty and the others full; the first `east` are in zone
    east, the others in zone west.
    """
    names = [f"h{number:02}" for number in range(hosts)]
    zones = {name: "east" if number < east else "west" for number, name in enumerate(names)}
    cloud = PlainCloud(dict.fromkeys(names, WHOLE), KINDS, zones=zones | ZONES, held_share=share)
    for name in names[free:]:
        cloud.hosts[name].free = {"VCPU": 0}
    return cloud


def held_of(cloud: PlainCloud) -> dict[str, str]:
    return {root: own.rank.request for root, own in cloud.queues.reserved.own.items()}


@pytest.mark.parametrize(("share", "held"), [(0.1, 6), (0.5, 30), (1.0, 31), (0.0, 1)])
def test_a_project_holds_at_most_a_share_of_all_hosts_and_at_least_one(share: float, held: int) -> None:
    cloud = a_cloud(60, free=30, share=share)
    cloud.wait(0, "whole", needs=31, project="p")
    cloud.plays()
    assert len(held_of(cloud)) == held


CASES: dict[str, tuple[list[tuple[str, str, int]], dict[str, int]]] = {
    # waiting requests (class, project, instances), oldest first; request → number of hosts held for it
    "a gang of one project and requests of others": (
        [("whole", "p", 30), ("small", "q", 1), ("other", "r", 1)],
        {"r00000": 6, "r00001": 1, "r00002": 1},
    ),
    "two classes of one project share its hosts": (
        [("whole", "p", 30), ("small", "p", 1)],
        {"r00000": 5, "r00001": 1},
    ),
    "equal requests of two projects": (
        [("whole", "p", 1), ("whole", "q", 1)],
        {"r00000": 1, "r00001": 1},
    ),
    "only the first request of a class": (
        [("whole", "p", 1), ("whole", "p", 1)],
        {"r00000": 1},
    ),
    "a gang holds as many hosts as its instances need": (
        [("small", "p", 8), ("whole", "q", 3)],  # four instances of the class small fit on a host
        {"r00000": 2, "r00001": 3},
    ),
    "a gang that needs more than all hosts holds none": (
        [("whole", "p", 61), ("small", "q", 1)],
        {"r00001": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("waits", "held"), CASES.values(), ids=CASES.keys())
def test_hosts_are_held_for_the_first_request_of_each_queue(
    waits: list[tuple[str, str, int]], held: dict[str, int]
) -> None:
    cloud = a_cloud(60, free=0)
    for number, (kind, project, needs) in enumerate(waits):
        cloud.wait(number, kind, needs=needs, project=project, since=float(number))
    cloud.plays()
    assert Counter(held_of(cloud).values()) == held


def test_late_boots_may_not_use_a_host_held_for_any_waiting_project() -> None:
    cloud = a_cloud(60, free=0)
    cloud.wait(0, "whole", needs=30, project="p", since=0.0)
    cloud.wait(1, "other", project="q", since=1.0)
    cloud.plays()
    for host in cloud.hosts:
        cloud.frees(host, VCPU=2)  # too little for both, and enough for a boot of the class small
    cloud.plays()
    late = Contender("late", 0, 2.0)
    assert cloud.queues.barred(late) == held_of(cloud).keys()
    assert set(held_of(cloud).values()) == {"r00000", "r00001"}


def test_all_requests_together_hold_at_most_half_of_the_hosts() -> None:
    cloud = a_cloud(20, free=0)
    for number in range(30):
        cloud.wait(number, "whole", project=f"p{number}", since=float(number))
    cloud.queues.reserve_elsewhere({"h19": StoredHold("h19", (0, 0.5, "another"), "q", 1.0, 99.0)})
    cloud.plays()
    assert sorted(held_of(cloud).values()) == [f"r{number:05}" for number in range(9)]
    assert "h19" not in held_of(cloud) or held_of(cloud)["h19"] == "r00000"


def test_a_class_keeps_its_hosts_when_another_one_is_nearer_to_them() -> None:
    cloud = a_cloud(20, free=0)
    cloud.wait(0, "whole", project="p", since=0.0)
    cloud.wait(1, "other", project="q", since=1.0)
    cloud.plays()
    held = held_of(cloud)
    for root in held:
        cloud.frees(root, VCPU=2)
    cloud.plays()
    assert held_of(cloud) == held


@dataclass
class SlowHolds:
    """Chooses the hosts to hold for the requests of a full cloud, one after another among all hosts."""

    cloud: PlainCloud
    share: float
    held: dict[str, tuple[str, str]] = field(default_factory=dict)  # root → request, project

    def chosen(self) -> dict[str, str]:
        firsts: dict[str, tuple[QueueKey, str, int, str]] = {}
        for key, kind, needs, project in sorted(self.cloud.waiting.values()):
            firsts.setdefault(kind, (key, kind, needs, project))
        queues = [each for each in firsts.values() if self._together(each) >= each[2]]
        for queue in [each for each in queues if self._hold(each)]:
            while self._hold(queue):
                pass
        return {root: request for root, (request, _) in self.held.items()}

    def _copies(self, root: str, kind: str) -> int:
        host = self.cloud.hosts[root]
        return host.ever(self.cloud.asked_by(kind)) if self.cloud.is_in_zone(root, kind) else 0

    def _together(self, queue: tuple[QueueKey, str, int, str]) -> int:
        return sum(self._copies(root, queue[1]) for root in self.cloud.hosts)

    def _hold(self, queue: tuple[QueueKey, str, int, str]) -> bool:
        (*_, request), kind, needs, project = queue
        hosts, mine = len(self.cloud.hosts), [root for root in self.held if self.held[root][0] == request]
        of_project = sum(other == project for _, other in self.held.values())
        enough = sum(self._copies(root, kind) for root in mine) >= needs
        full = len(self.held) >= max(int(max(self.share, 0.5) * hosts), 1)
        if enough or full or of_project >= max(int(self.share * hosts), 1):
            return False
        left = [
            (self.cloud.asked_by(kind)["VCPU"] - host.free["VCPU"], at, root)
            for at, (root, host) in enumerate(self.cloud.hosts.items())
            if root not in self.held and self._copies(root, kind) and not self._is_last(root, kind)
        ]
        if left:
            self.held[min(left)[2]] = request, project
        return bool(left)

    def _is_last(self, root: str, kind: str) -> bool:
        """Return whether no other host of the zone is left for the requests that name it."""
        zone, cloud = self.cloud.zone(root), self.cloud
        if zone == cloud.named_zone(kind):
            return False
        named = {cloud.named_zone(other) for _, other, _, _ in cloud.waiting.values()}
        free = [other for other in cloud.hosts if cloud.zone(other) == zone and other not in self.held]
        return zone in named and len(free) <= 1


@pytest.mark.parametrize("seed", range(40))
def test_the_held_hosts_are_those_of_a_slow_model(seed: int) -> None:
    chance = random.Random(seed)
    share = chance.choice((0.0, 0.1, 0.2, 0.6))
    cloud = a_cloud(chance.randint(2, 30), free=0, share=share, east=chance.randint(0, 3))
    for host in cloud.hosts.values():
        host.free = {"VCPU": chance.randint(0, 1)}
    for number in range(chance.randint(1, 12)):
        kind, needs = chance.choice([*KINDS]), chance.choice((1, 1, 2, 5))
        kind = f"{kind} {needs}"  # requests of one class have equally many instances
        cloud.kinds[kind] = KINDS[kind.split()[0]]
        cloud.zones[kind] = ZONES.get(kind.split()[0], "")
        project, priority = chance.choice("pqr"), chance.randint(0, 1)
        cloud.wait(number, kind, needs=needs, project=project, priority=priority, since=float(number))
    cloud.plays()
    assert held_of(cloud) == SlowHolds(cloud, share).chosen()


def test_hosts_that_another_scheduler_holds_for_an_older_request_of_the_project_count() -> None:
    cloud = a_cloud(40, free=0)
    cloud.wait(0, "whole", needs=9, project="p", since=5.0)
    elsewhere = [StoredHold(f"h{number}", (0, 1.0, "older"), "p", 1.0, 99.0) for number in range(37, 40)]
    elsewhere.append(StoredHold("h30", (0, 9.0, "younger"), "p", 9.0, 99.0))
    elsewhere.append(StoredHold("h31", (0, 1.0, "another"), "q", 1.0, 99.0))
    elsewhere.append(StoredHold("h32", (0, 1.0, "move"), "p", 1.0, 99.0, purpose="move"))
    cloud.queues.reserve_elsewhere({hold.root: hold for hold in elsewhere})
    cloud.plays()
    assert len(held_of(cloud)) == 1


def test_a_held_host_is_tried_when_the_other_hosts_of_the_zone_are_full_again() -> None:
    cloud = a_cloud(12, free=0, share=0.1, east=2)
    cloud.hosts["h00"].free["VCPU"] = 3
    cloud.wait(0, "whole", project="p", since=0)
    cloud.wait(1, "east", project="q", since=1, needs=1)
    cloud.hosts["h01"].free["VCPU"] = 2
    cloud.queues.settle(0.0)
    cloud.hosts["h01"].free["VCPU"] = 0  # a request of another scheduler takes it
    assert cloud.plays() == [("r00001", "h00")]


@pytest.mark.parametrize("seed", range(4))
def test_no_limit_is_exceeded_in_random_clouds(seed: int) -> None:
    chance = np.random.default_rng(seed)
    cloud = a_cloud(30, free=0, share=0.2, east=int(chance.integers(1, 4)))
    for step in range(60):
        number = len(cloud.waiting) and int(chance.integers(0, 2))
        if number:
            root = f"h{int(chance.integers(0, 30)):02}"
            cloud.frees(root, VCPU=min(int(chance.integers(1, 5)), 8 - cloud.hosts[root].free["VCPU"]))
        else:
            kind, project = chance.choice([*KINDS]), chance.choice(["p", "q"])
            cloud.wait(step, kind, needs=int(chance.integers(1, 9)), project=project, since=float(step))
        cloud.plays(now=float(step))
        own = cloud.queues.reserved.own
        named = {cloud.named_zone(kind) for _, kind, _, _ in cloud.waiting.values()} - {""}
        for project in ("p", "q"):
            assert sum(each.rank.project == project for each in own.values()) <= 6
        for request in {each.rank.request for each in own.values()}:
            assert sum(each.rank.request == request for each in own.values()) <= cloud.waiting[request][2]
        for zone in named:
            there = {root for root in cloud.hosts if cloud.zone(root) == zone}
            assert not there <= {root for root, each in own.items() if each.zone != zone}


def boots_late(cloud: PlainCloud, now: float, kind: str = "small") -> bool:
    """Place a new request of another project on any host that it may use; return False if it finds none."""
    cloud.now = now
    cloud.queues.settle(now)
    barred = cloud.queues.barred(Contender("late", 0, now))
    if not (taken := cloud.place(kind, barred)):
        return False
    cloud.queues.on_placed("late", cloud.size(kind), now)
    cloud.queues.changed(taken)
    return True


def lives(cloud: PlainCloud, chance: random.Random, now: float, running: list[str]) -> int:
    """End one of the running small instances, and boot new ones as long as they fit. Return how many did."""
    root = running.pop(chance.randrange(len(running)))
    cloud.frees(root, VCPU=2)
    cloud.plays(now)
    free = {root: host.free["VCPU"] for root, host in cloud.hosts.items()}
    booted = 0
    while boots_late(cloud, now):
        [root] = [root for root, host in cloud.hosts.items() if host.free["VCPU"] != free[root]]
        free[root] -= 2
        running.append(root)
        booted += 1
    return booted


@pytest.mark.parametrize("needs", [5, 12, 30])
@pytest.mark.parametrize("seed", range(3))
def test_late_boots_do_not_overtake_a_gang_until_it_expires(needs: int, seed: int) -> None:
    """60 full hosts of four instances each. Every second an instance ends, and new ones of another project
    boot wherever they may: a gang of up to half of the hosts gets its hosts within its waiting time.
    """
    cloud, chance = a_cloud(60, free=0), random.Random(seed)
    running = [root for root in cloud.hosts for _ in range(4)]
    cloud.wait(0, "whole", needs=needs, project="p")
    cloud.ends["r00000"] = 3600.0
    cloud.plays()
    booted = 0
    for now in range(1, 3600):
        booted += lives(cloud, chance, float(now), running)
        if "r00000" not in cloud.waiting:
            break
    assert [request for request, _ in cloud.placed] == ["r00000"] * needs
    assert booted > now / 2, "other projects must go on booting on the other hosts"


def test_one_gang_at_a_time_holds_more_than_the_share_of_its_project() -> None:
    cloud = a_cloud(60, free=0)
    for number, project in enumerate("pqr"):
        cloud.wait(number, "whole", needs=20, project=project, since=float(number))
        cloud.ends[f"r{number:05}"] = 100.0
    cloud.wait(3, "small", project="s", since=3.0)
    held = []
    for now in (3.0, 30.0, 60.0):
        cloud.plays(now)
        held.append(Counter(held_of(cloud).values()))
    others = {"r00001": 6, "r00002": 6, "r00003": 1}
    assert held == [{"r00000": several} | others for several in (6, 12, 20)]
    cloud.leave("r00000")
    cloud.plays(61.0)
    assert Counter(held_of(cloud).values()) == {"r00001": 20, "r00002": 6, "r00003": 1}


def test_a_gang_that_needs_more_than_half_of_the_hosts_holds_the_share_of_its_project() -> None:
    cloud = a_cloud(60, free=0)
    cloud.wait(0, "whole", needs=31, project="p")
    cloud.wait(1, "whole", needs=30, project="q", since=1.0)
    cloud.ends = {"r00000": 100.0, "r00001": 100.0}
    cloud.plays(90.0)
    assert Counter(held_of(cloud).values()) == {"r00000": 6, "r00001": 30}


@pytest.mark.parametrize(("since", "held"), [(0.5, 6), (2.0, 20)])
def test_an_earlier_gang_of_another_scheduler_exceeds_its_share_first(since: float, held: int) -> None:
    cloud = a_cloud(60, free=0)
    cloud.wait(0, "whole", needs=20, project="p", since=1.0)
    cloud.ends["r00000"] = 100.0
    other = [StoredHold(f"h{number}", (0, since, "other"), "q", since, 99.0) for number in range(50, 57)]
    cloud.queues.reserve_elsewhere({hold.root: hold for hold in other})
    cloud.plays(90.0)
    assert len(held_of(cloud)) == held

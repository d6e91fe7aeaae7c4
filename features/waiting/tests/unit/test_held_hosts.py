"""The hosts that waiting requests hold free: for instances with a chance, within the share of a
project, and not the last host of a zone.
"""

import numpy as np
import pytest

from features.waiting.core.reserved_hosts import StoredHold
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


def test_hosts_that_another_scheduler_holds_for_an_older_request_of_the_project_count() -> None:
    cloud = a_cloud(40, free=0)
    cloud.wait(0, "whole", needs=9, project="p", since=5.0)
    elsewhere = [StoredHold(f"h{number}", (0, 1.0, "older"), "p", 1.0, 99.0) for number in range(37, 40)]
    elsewhere.append(StoredHold("h30", (0, 9.0, "younger"), "p", 9.0, 99.0))
    elsewhere.append(StoredHold("h31", (0, 1.0, "another"), "q", 1.0, 99.0))
    elsewhere.append(StoredHold("h32", (0, 1.0, "move"), "p", 1.0, 99.0, move=True))
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

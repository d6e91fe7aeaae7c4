"""The hosts that waiting requests hold free: for instances with a chance, within the share of a
project, and not the last host of a zone.
"""

import numpy as np
import pytest

from features.waiting.core.reserved_hosts import ReservedElsewhere
from features.waiting.core.shares import Contender
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


def test_the_requests_of_one_project_share_its_limit() -> None:
    cloud = a_cloud(40, free=0)
    cloud.wait(0, "whole", needs=3, project="p", since=0)
    cloud.wait(1, "small", needs=12, project="p", since=1)
    cloud.wait(2, "other", needs=12, project="q", since=2)
    cloud.plays()
    by_request = list(held_of(cloud).values())
    assert by_request.count("r00000") == 3
    assert by_request.count("r00001") + by_request.count("r00002") <= 4 + 1


def test_hosts_that_another_scheduler_holds_for_an_older_request_of_the_project_count() -> None:
    cloud = a_cloud(40, free=0)
    cloud.wait(0, "whole", needs=9, project="p", since=5.0)
    elsewhere = {f"h{number}": ReservedElsewhere((0, 1.0, "older"), "p") for number in range(37, 40)}
    elsewhere |= {"h30": ReservedElsewhere((0, 9.0, "younger"), "p")}
    elsewhere |= {"h31": ReservedElsewhere((0, 1.0, "another"), "q")}
    cloud.queues.reserve_elsewhere(elsewhere)
    cloud.plays()
    assert len(held_of(cloud)) == 1


def test_a_request_for_more_instances_than_all_hosts_could_ever_take_holds_none() -> None:
    cloud = a_cloud(60, free=30, share=1.0)
    cloud.wait(0, "whole", needs=61, project="p")
    cloud.plays()
    assert held_of(cloud) == {}


def test_a_request_without_a_chance_to_start_in_time_holds_no_host() -> None:
    cloud = a_cloud(10, free=0)
    cloud.hopeless.add("r00000")
    cloud.wait(0, "whole", project="p")
    cloud.plays()
    assert held_of(cloud) == {}
    cloud.hopeless.clear()
    cloud.queues.everything()
    cloud.plays()
    assert list(held_of(cloud).values()) == ["r00000"]


def test_the_last_host_of_a_zone_that_others_name_is_not_held() -> None:
    cloud = a_cloud(4, free=0, share=1.0, east=1)
    cloud.wait(0, "whole", needs=4, project="p", since=0)
    cloud.plays()
    assert len(held_of(cloud)) == 4
    cloud.wait(1, "east", project="q", since=1)
    cloud.plays()
    assert "h00" not in held_of(cloud)
    cloud.frees("h00", VCPU=2)
    assert cloud.plays() == [("r00001", "h00")]


def test_the_last_host_of_a_zone_is_held_for_a_request_that_names_the_zone_itself() -> None:
    cloud = a_cloud(2, free=0, east=1)
    cloud.wait(0, "whole-east", project="p", since=0)
    cloud.wait(1, "east", project="q", since=1)
    cloud.plays()
    assert held_of(cloud) == {"h00": "r00000"}
    cloud.frees("h00", VCPU=2)
    assert cloud.plays() == []


def test_a_waiting_request_gets_the_only_host_of_its_zone_where_it_fits_although_it_is_held() -> None:
    cloud = a_cloud(12, free=0, share=0.1, east=3)
    cloud.hosts["h00"].free["VCPU"] = 1  # nearest to what the large request lacks
    cloud.wait(0, "whole", project="p", since=0)
    cloud.wait(1, "east", project="q", since=1)
    cloud.plays()
    assert held_of(cloud) == {"h00": "r00000"}
    cloud.frees("h00", VCPU=1)
    assert cloud.plays() == [("r00001", "h00")]


def test_a_held_host_is_tried_when_the_other_hosts_of_the_zone_are_full_again() -> None:
    cloud = a_cloud(12, free=0, share=0.1, east=2)
    cloud.hosts["h00"].free["VCPU"] = 3
    cloud.wait(0, "whole", project="p", since=0)
    cloud.wait(1, "east", project="q", since=1, needs=1)
    cloud.hosts["h01"].free["VCPU"] = 2
    cloud.queues.settle(0.0)
    cloud.hosts["h01"].free["VCPU"] = 0  # a request of another scheduler takes it
    assert cloud.plays() == [("r00001", "h00")]


def test_a_new_request_may_use_held_hosts_of_its_zone_only_if_it_fits_on_no_other() -> None:
    cloud = a_cloud(12, free=0, east=2)
    cloud.hosts["h00"].free["VCPU"] = 4
    cloud.wait(0, "whole", project="p", since=0)
    cloud.plays()
    new = Contender("q", 0, 5.0)
    asked: list[frozenset[str]] = []

    def fits(excluding: frozenset[str], answer: bool) -> bool:
        asked.append(excluding)
        return answer

    assert cloud.queues.barred(new, "east", lambda roots: fits(frozenset(roots), True)) == {"h00"}
    assert cloud.queues.barred(new, "east", lambda roots: fits(frozenset(roots), False)) == frozenset()
    assert cloud.queues.barred(new, "west", lambda roots: fits(frozenset(roots), False)) == {"h00"}
    assert asked == [{"h00"}] * 2, "only if a host of the zone is held"


def test_a_held_host_knows_since_when_it_is_held_for_the_request() -> None:
    cloud = a_cloud(10, free=0)
    cloud.wait(0, "whole", project="p", since=0)
    cloud.plays(now=3.0)
    [root] = held_of(cloud)
    cloud.frees(root, VCPU=1)
    cloud.plays(now=9.0)
    assert [own.since for own in cloud.queues.reserved.own.values()] == [3.0]


@pytest.mark.parametrize("seed", range(40))
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

"""Instances of requests that join a server group: each counts for the hosts of the next ones."""

from typing import Any

import pytest

from bus.topics import Query
from features.groups.messages import GROUPS, FindGroups, GroupPolicy, GroupsFound, ServerGroup, claimed_group
from features.groups.tests.support.group_parts import in_group as joins
from features.groups.tests.support.orders_in_groups import in_group
from placement_worker.core.trees import Tree
from scheduler_worker import ChoicePolicy
from scheduler_worker.core.order import Order
from scheduler_worker.core.ranking import replay
from scheduler_worker.placing import Scheduler
from tests.support.ids import uid
from tests.support.index_source import source_of
from tests.support.provider_trees import state, tree
from tests.support.ranking_builders import Hall, free
from tests.support.scheduler_builders import ROOM, FakePlacement, a_candidate, a_request
from tests.support.schedulers import allocations_of, placed_and_ended, scheduler_of
from tests.support.virtual_time import TurnedClock

GROUP = uid(1, "f")


def a_scheduler(placement: FakePlacement, policy: GroupPolicy | None = None) -> Scheduler:
    """Return a scheduler; all consumers are in one group if a policy is given."""

    async def find_groups(question: FindGroups) -> GroupsFound:
        members = {consumer: tuple(held.allocations) for consumer, held in placement.held.items()}
        group = policy and ServerGroup(id=GROUP, name="g", policy=policy, members=members)
        return GroupsFound(groups=(group,) if group else ())

    clock = TurnedClock().clock

    def ask(query: Query[Any, Any], /) -> Any:
        return find_groups if query is GROUPS else placement.asker(query)

    return scheduler_of(placement, clock=clock, ask=ask, allocations=allocations_of(placement))


@pytest.mark.parametrize(
    ("policy", "placed"), [("anti-affinity", 3), ("affinity", 1), ("soft-anti-affinity", 3)]
)
async def test_instances_of_a_request_count_in_their_group(policy: GroupPolicy, placed: int) -> None:
    placement = FakePlacement(*(a_candidate(number) for number in range(3)))
    request = a_request(instances=3, parts=joins(GROUP))
    found, ended = await placed_and_ended(a_scheduler(placement, policy), request)
    assert ended == []
    assert len({placed.chosen.root for placed in found}) == placed
    assert all(claimed_group(claim.parts) == GROUP for order in placement.orders for claim in order.claims)


async def test_requests_of_a_batch_count_in_their_group() -> None:
    placement = FakePlacement(*(a_candidate(number) for number in range(3)))
    requests = [a_request(number, parts=joins(GROUP)) for number in range(4)]
    scheduler = a_scheduler(placement, "anti-affinity")
    found, _ = await placed_and_ended(scheduler, *requests)
    roots = [placed.chosen.root for placed in found]
    assert len(roots) == len(set(roots)) == 3


FEW = {"VCPU": 4, "MEMORY_MB": 4096, "DISK_GB": 40}


async def test_a_refused_choice_is_no_group_member() -> None:
    placement = FakePlacement(a_candidate(1), a_candidate(2, free=FEW))
    placement.source.lag = True
    placement.take(uid(1, "c"), ROOM)
    request = a_request(instances=2, parts=joins(GROUP))
    found, _ = await placed_and_ended(a_scheduler(placement, "affinity"), request)
    assert [placed.chosen.root for placed in found] == [uid(2, "c")] * 2


@pytest.mark.parametrize("policy", ["affinity", "anti-affinity"])
async def test_a_released_member_is_forgotten(policy: GroupPolicy) -> None:
    """An empty group may go anywhere, also where its members were before."""
    placement = FakePlacement(a_candidate(1), a_candidate(2, free=FEW))
    scheduler, parts = a_scheduler(placement, policy), joins(GROUP)
    (first,), _ = await placed_and_ended(scheduler, a_request(1, parts=parts))
    placement.held.clear()
    for root, left in placement.free.items():
        if (root == first.chosen.root) == (policy == "affinity"):
            left["VCPU"] = 0
    (second,), _ = await placed_and_ended(scheduler, a_request(2, parts=parts))
    assert (second.chosen.root == first.chosen.root) == (policy == "anti-affinity")


async def test_a_group_that_there_is_not_is_named() -> None:
    placement = FakePlacement(a_candidate(1))
    _, (ended,) = await placed_and_ended(a_scheduler(placement), a_request(parts=joins(GROUP)))
    assert ended.reason == f"hints.group: there is no server group {GROUP} in this project"
    assert placement.orders == []


AFFINITY = ServerGroup(id=uid(1, "e"), name="g", policy="affinity")
ONE_EACH = [free(number, 9000 + number, vcpus=1) for number in (1, 2, 3)]


def an_order(hall: Hall, instances: int, at_least: int = 0) -> Order:
    return in_group(hall, a_request(instances=instances, at_least=at_least), AFFINITY)


def chosen(hall: Hall, order: Order) -> list[str]:
    (answer,) = hall.choosing().choose([order])
    return [pick.choices[0].host for pick in answer.picks]


def a_world(*trees: Tree) -> Hall:
    return Hall(source_of(trees), ChoicePolicy.from_names(weighers=["ram"]))


def test_hosts_with_capacity_for_some_instances_are_named() -> None:
    pieces = [state(1 + position, 0, {"VCPU": 8, "MEMORY_MB": 1900}) for position in range(3)]
    better = tree(state(0, None, {"DISK_GB": 1000}), *pieces)
    other = tree(state(10, None, {"VCPU": 8, "MEMORY_MB": 4096, "DISK_GB": 1000}))
    hall = a_world(better, other)
    (answer,) = hall.choosing().choose([an_order(hall, 5)])
    assert not answer.picks and answer.short is not None
    assert [(removal.code, removal.removed, removal.left) for removal in answer.short.removals] == [
        ("server_group", 1, 1),  # by what it has in all
        ("server_group", 1, 0),
    ]
    assert {(miss.host, miss.lacks) for miss in answer.short.nearest} == {
        ("p0", "room for 3 of 5 that are to be together"),
        ("p10", "no room for 5 of server group g together"),
    }


def test_the_record_names_better_hosts_without_capacity_for_all() -> None:
    halves = [state(21 + position, 20, {"VCPU": 8, "MEMORY_MB": 3 * 1024 - 1}) for position in range(2)]
    apart = tree(state(20, None, {"DISK_GB": 1000}), *halves)
    lone = tree(state(30, None, {"VCPU": 8, "MEMORY_MB": 5 * 1024, "DISK_GB": 1000}))
    hall = a_world(apart, lone)
    order = an_order(hall, 5)
    (answer,) = hall.choosing().choose([order])
    assert {pick.root for pick in answer.picks} == {lone.root}
    first = answer.picks[0].record
    assert [(host.host, host.refused) for host in first.hosts] == [
        ("p20", "server_group_affinity: room for 4 of 5 that are to be together"),
        ("p30", ""),
    ]
    for instance, pick in zip(order.instances, answer.picks, strict=True):
        found = replay(instance, pick.record).host
        assert found is not None and found.root == pick.root

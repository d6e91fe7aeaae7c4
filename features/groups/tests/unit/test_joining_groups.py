"""Instances of requests that join a server group: each counts for the hosts of the next ones."""

from typing import Any

from bus.topics import Query
from features.groups.messages import GROUPS, FindGroups, GroupPolicy, GroupsFound, ServerGroup
from features.groups.tests.support.group_parts import in_group as joins
from features.groups.tests.support.orders_in_groups import in_group
from placement_worker.extension import Tree
from scheduler_worker.extension import ChoicePolicy, Order
from scheduler_worker.testing import Scheduler
from tests.support.ids import uid
from tests.support.index_source import source_of
from tests.support.provider_trees import state, tree
from tests.support.ranking_builders import Hall
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


FEW = {"VCPU": 4, "MEMORY_MB": 4096, "DISK_GB": 40}


async def test_a_refused_choice_is_no_group_member() -> None:
    placement = FakePlacement(a_candidate(1), a_candidate(2, free=FEW))
    placement.source.lag = True
    placement.take(uid(1, "c"), ROOM)
    request = a_request(instances=2, parts=joins(GROUP))
    found, _ = await placed_and_ended(a_scheduler(placement, "affinity"), request)
    assert [placed.chosen.root for placed in found] == [uid(2, "c")] * 2


AFFINITY = ServerGroup(id=uid(1, "e"), name="g", policy="affinity")


def an_order(hall: Hall, instances: int, at_least: int = 0) -> Order:
    return in_group(hall, a_request(instances=instances, at_least=at_least), AFFINITY)


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

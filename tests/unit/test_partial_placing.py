"""Other flavors that would do, fewer instances that are enough, and server groups that are being joined."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import structs

from bus.addressing import Query
from bus.messages import BuildPlaced, BuildRequested, BuildUnplaceable
from bus.requests import Flavor, Hints
from bus.resources import AllocationsFound, Consumer, FindAllocations
from features.groups.messages import GROUPS, FindGroups, GroupPolicy, GroupsFound, ServerGroup, claimed_group
from features.groups.tests.support.group_parts import in_group
from placement_worker.core.trees import Tree
from scheduler_worker import ChoicePolicy
from scheduler_worker.core.order import Order
from scheduler_worker.core.scale import replay
from scheduler_worker.placing import Scheduler
from tests.support.ids import uid
from tests.support.index_source import source_of
from tests.support.provider_trees import state, tree
from tests.support.ranking_builders import Hall, a_hall, free
from tests.support.scheduler_builders import ROOM, SMALL, FakePlacement, a_candidate, a_request
from tests.support.schedulers import messages_of, scheduler_of
from tests.support.virtual_time import TurnedClock

GOLD = Flavor(name="gold", extra_specs={"resources:CUSTOM_GOLD": "1", "resources:VCPU": "0"})
SILVER = Flavor(name="silver", extra_specs={"resources:CUSTOM_SILVER": "1", "resources:VCPU": "0"})
BIG = Flavor(name="big", vcpus=8, memory_mb=1024)
GROUP = uid(1, "f")


def metals(gold: int, silver: int) -> FakePlacement:
    nodes = [a_candidate(number, free={"CUSTOM_GOLD": 1}) for number in range(gold)]
    nodes += [a_candidate(100 + number, free={"CUSTOM_SILVER": 1}) for number in range(silver)]
    return FakePlacement(*nodes)


def a_scheduler(placement: FakePlacement, policy: GroupPolicy | None = None) -> Scheduler:
    """Return a scheduler; all consumers are in one group if a policy is given."""

    async def find_groups(question: FindGroups) -> GroupsFound:
        members = {consumer: tuple(held.allocations) for consumer, held in placement.held.items()}
        group = policy and ServerGroup(id=GROUP, name="g", policy=policy, members=members)
        return GroupsFound(groups=(group,) if group else ())

    async def find_allocations(question: FindAllocations) -> AllocationsFound:
        found = [
            Consumer(
                id=consumer, generation=1, project="p", user="u", type="INSTANCE",
                allocations=placement.held[consumer].allocations,
            )
            for consumer in question.consumers
            if consumer in placement.held
        ]  # fmt: skip
        return AllocationsFound(consumers=tuple(found), generations={})

    clock = TurnedClock().clock

    def ask(query: Query[Any, Any], /) -> Any:
        return find_groups if query is GROUPS else placement.asker(query)

    return scheduler_of(placement, clock=clock, ask=ask, allocations=find_allocations)


async def said(
    scheduler: Scheduler, *requests: BuildRequested
) -> tuple[list[BuildPlaced], list[BuildUnplaceable]]:
    messages = await messages_of(scheduler, *requests)
    return (
        [placed for placed in messages if isinstance(placed, BuildPlaced)],
        [end for end in messages if isinstance(end, BuildUnplaceable)],
    )


@pytest.mark.parametrize(
    ("gold", "silver", "wanted", "flavors"),
    [
        (1, 1, 1, ["gold"]),
        (0, 1, 1, ["silver"]),
        (1, 2, 2, ["silver", "silver"]),
        (2, 2, 2, ["gold", "gold"]),
    ],
    ids=["the first", "the next where the first has none", "all of one flavor", "enough of the first"],
)
async def test_the_next_flavor_is_used_for_the_remaining_instances(
    gold: int, silver: int, wanted: int, flavors: list[str]
) -> None:
    request = a_request(instances=wanted, flavor=GOLD, or_else=(SILVER,))
    placed, ended = await said(a_scheduler(metals(gold, silver)), request)
    assert ([one.spec.flavor.name for one in placed], ended) == (flavors, [])
    used = {one.decision.record.flavor for one in placed if one.decision.record}
    assert used == {["gold", "silver"].index(flavors[0])}


async def test_no_host_for_any_flavor_has_a_reason_for_each() -> None:
    placed, (ended,) = await said(a_scheduler(metals(0, 0)), a_request(flavor=GOLD, or_else=(SILVER,)))
    assert placed == []
    assert ended.reason.startswith("no valid host among 0")
    assert "As 'silver': no valid host among 0" in ended.reason


async def test_a_redelivered_request_reports_the_second_flavor_that_it_holds() -> None:
    placement, request = metals(0, 2), a_request(flavor=GOLD, or_else=(SILVER,))
    await said(a_scheduler(placement), request)
    (again,), _ = await said(a_scheduler(placement), request)
    assert again.spec.flavor == SILVER


def of_eight_processors(hosts: int) -> FakePlacement:
    free = {"VCPU": 8, "MEMORY_MB": 1024}
    return FakePlacement(*(a_candidate(number, free=free) for number in range(hosts)))


@pytest.mark.parametrize(
    ("hosts", "at_least", "placed"),
    [(3, 0, 0), (3, 2, 3), (2, 2, 2), (1, 2, 0), (9, 2, 5)],
    ids=["all or none", "as many as fit", "just enough", "too few", "all"],
)
async def test_as_many_instances_as_fit_are_placed_if_enough(hosts: int, at_least: int, placed: int) -> None:
    placement = of_eight_processors(hosts)
    request = a_request(instances=5, flavor=BIG, at_least=at_least)
    found, ended = await said(a_scheduler(placement), request)
    assert [placed.build for placed in found] == list(request.instances[:placed])
    assert [instance for end in ended for instance in end.instances] == list(request.instances[placed:])
    assert len(placement.held) == placed
    assert set(placement.retired) == set(request.instances[placed:])
    assert all(end.reason.startswith("no valid host") for end in ended)


async def test_the_hosts_that_earlier_instances_would_take_are_counted_as_such() -> None:
    """Hosts of siblings are not counted as hosts with too little capacity: each instance alone would fit."""
    placement = of_eight_processors(3)
    _, (ended,) = await said(a_scheduler(placement), a_request(instances=5, flavor=BIG))
    [removal] = ended.decision.removals
    assert (removal.code, removal.removed, removal.left, len(removal.hosts)) == ("chosen", 3, 0, 3)
    assert "taken by other instances of the request: 3 hosts" in ended.reason
    assert ended.decision.code == "room" and not ended.decision.nearest
    assert ended.reason.endswith("free capacity for 3 of the 5 instances needed at once")


async def test_missing_instances_may_get_the_next_flavor() -> None:
    request = a_request(instances=3, flavor=GOLD, or_else=(SILVER,), at_least=1)
    placed, ended = await said(a_scheduler(metals(1, 1)), request)
    assert [one.spec.flavor.name for one in placed] == ["gold", "silver"]
    assert [end.instances for end in ended] == [request.instances[2:]]


async def test_missing_instances_get_the_reasons_of_every_flavor() -> None:
    request = a_request(instances=3, flavor=GOLD, or_else=(SILVER,), at_least=1)
    placed, (ended,) = await said(a_scheduler(metals(0, 2)), request)
    assert [one.spec.flavor.name for one in placed] == ["silver", "silver"]
    assert ended.reason.startswith("no valid host among 2")
    assert "As 'silver': no valid host among 2" in ended.reason
    # of the flavor asked for, before any was placed
    assert [removal.removed for removal in ended.decision.removals] == [2]


@pytest.mark.parametrize(
    ("policy", "placed"), [("anti-affinity", 3), ("affinity", 1), ("soft-anti-affinity", 3)]
)
async def test_instances_of_a_request_count_in_their_group(policy: GroupPolicy, placed: int) -> None:
    placement = FakePlacement(*(a_candidate(number) for number in range(3)))
    request = a_request(instances=3, parts=in_group(GROUP))
    found, ended = await said(a_scheduler(placement, policy), request)
    assert ended == []
    assert len({placed.chosen.root for placed in found}) == placed
    assert all(claimed_group(claim.parts) == GROUP for order in placement.orders for claim in order.claims)


async def test_requests_of_a_batch_count_in_their_group() -> None:
    placement = FakePlacement(*(a_candidate(number) for number in range(3)))
    requests = [a_request(number, parts=in_group(GROUP)) for number in range(4)]
    scheduler = a_scheduler(placement, "anti-affinity")
    found, _ = await said(scheduler, *requests)
    roots = [placed.chosen.root for placed in found]
    assert len(roots) == len(set(roots)) == 3


FEW = {"VCPU": 4, "MEMORY_MB": 4096, "DISK_GB": 40}


async def test_a_refused_choice_is_no_group_member() -> None:
    placement = FakePlacement(a_candidate(1), a_candidate(2, free=FEW))
    placement.source.lag = True
    placement.take(uid(1, "c"), ROOM)
    request = a_request(instances=2, parts=in_group(GROUP))
    found, _ = await said(a_scheduler(placement, "affinity"), request)
    assert [placed.chosen.root for placed in found] == [uid(2, "c")] * 2


@pytest.mark.parametrize("policy", ["affinity", "anti-affinity"])
async def test_a_released_member_is_forgotten(policy: GroupPolicy) -> None:
    """An empty group may go anywhere, also where its members were before."""
    placement = FakePlacement(a_candidate(1), a_candidate(2, free=FEW))
    scheduler, parts = a_scheduler(placement, policy), in_group(GROUP)
    (first,), _ = await said(scheduler, a_request(1, parts=parts))
    placement.held.clear()
    for root, left in placement.free.items():
        if (root == first.chosen.root) == (policy == "affinity"):
            left["VCPU"] = 0
    (second,), _ = await said(scheduler, a_request(2, parts=parts))
    assert (second.chosen.root == first.chosen.root) == (policy == "anti-affinity")


async def test_a_group_that_there_is_not_is_named() -> None:
    placement = FakePlacement(a_candidate(1))
    _, (ended,) = await said(a_scheduler(placement), a_request(parts=in_group(GROUP)))
    assert ended.reason == f"hints.group: there is no server group {GROUP} in this project"
    assert placement.orders == []


@pytest.mark.parametrize(("hint", "beside"), [("same_host", True), ("different_host", False)])
async def test_same_host_and_different_host_hints(hint: str, beside: bool) -> None:
    placement = FakePlacement(*(a_candidate(number) for number in range(4)))
    scheduler = a_scheduler(placement)
    (other,), _ = await said(scheduler, a_request(1))
    hints = msgspec.convert({hint: [other.build]}, Hints)
    (found,), _ = await said(scheduler, a_request(2, hints=hints))
    assert (found.chosen.root == other.chosen.root) == beside


async def test_a_record_is_small() -> None:
    placement = FakePlacement(*(a_candidate(number, free={"VCPU": 8 + number}) for number in range(9)))
    (placed,), _ = await said(a_scheduler(placement), a_request(flavor=Flavor(name="f", vcpus=1)))
    record = placed.decision.record
    assert record is not None
    assert len(record.hosts) <= 8
    assert len(msgspec.json.encode(record)) < 1200
    assert placed.spec.flavor != SMALL


AFFINITY = ServerGroup(id=uid(1, "e"), name="g", policy="affinity")
ONE_EACH = [free(number, 9000 + number, vcpus=1) for number in (1, 2, 3)]


def an_order(hall: Hall, instances: int, at_least: int = 0, group: ServerGroup | None = AFFINITY) -> Order:
    return hall.order(a_request(instances=instances, at_least=at_least), group)


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


def test_instances_next_to_another_instance_need_not_be_together() -> None:
    hall = a_hall(*ONE_EACH, policy=ChoicePolicy.from_names(weighers=["ram"]))
    order = an_order(hall, 2, group=None)
    alternative = replace(order.alternative, same=frozenset([uid(1, "c"), uid(2, "c")]))
    assert chosen(hall, structs.replace(order, attempts=((alternative,),))) == ["host2", "host1"]


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

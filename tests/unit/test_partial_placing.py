"""Other flavors that would do, fewer instances that are enough, and server groups that are being joined."""

import msgspec
import pytest

from bus.groups import FindGroups, GroupPolicy, GroupsFound, ServerGroup
from bus.messages import BuildPlaced, BuildUnplaceable
from bus.requests import Flavor, Hints
from bus.resources import AllocationsFound, Consumer, FindAllocations
from scheduler_worker.placing import Scheduler
from tests.support.ids import uid
from tests.support.scheduler_builders import SMALL, FakePlacement, TurnedClock, a_candidate, a_request
from tests.support.schedulers import scheduler_of

GOLD = Flavor(name="gold", extra_specs={"resources:CUSTOM_GOLD": "1", "resources:VCPU": "0"})
SILVER = Flavor(name="silver", extra_specs={"resources:CUSTOM_SILVER": "1", "resources:VCPU": "0"})
BIG = Flavor(name="big", vcpus=8, memory_mb=1024)
GROUP = uid(1, "f")


def metals(gold: int, silver: int) -> FakePlacement:
    nodes = [a_candidate(number, free={"CUSTOM_GOLD": 1}) for number in range(gold)]
    nodes += [a_candidate(100 + number, free={"CUSTOM_SILVER": 1}) for number in range(silver)]
    return FakePlacement.of(*nodes)


def a_scheduler(placement: FakePlacement, *groups: ServerGroup, **held: str) -> Scheduler:
    async def find_groups(question: FindGroups) -> GroupsFound:
        return GroupsFound(groups=tuple(group for group in groups if group.id in question.ids))

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

    return scheduler_of(
        placement, clock=TurnedClock().clock, groups=find_groups, allocations=find_allocations
    )


async def said(scheduler: Scheduler, *requests: object) -> tuple[list[BuildPlaced], list[BuildUnplaceable]]:
    verdicts = await scheduler.place_many(requests)  # type: ignore[arg-type]
    messages = [message for verdict in verdicts for message in verdict]  # type: ignore[union-attr]
    return (
        [one for one in messages if isinstance(one, BuildPlaced)],
        [one for one in messages if isinstance(one, BuildUnplaceable)],
    )


# Other flavors that would do


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
async def test_the_next_flavor_is_for_those_that_the_one_before_has_no_host_for(
    gold: int, silver: int, wanted: int, flavors: list[str]
) -> None:
    request = a_request(instances=wanted, flavor=GOLD, or_else=(SILVER,))
    placed, ended = await said(a_scheduler(metals(gold, silver)), request)
    assert ([one.spec.flavor.name for one in placed], ended) == (flavors, [])
    assert {one.decision.record.flavor for one in placed if one.decision.record} == {
        ["gold", "silver"].index(flavors[0])
    }


async def test_no_host_for_any_flavor_says_why_of_each() -> None:
    placed, (ended,) = await said(a_scheduler(metals(0, 0)), a_request(flavor=GOLD, or_else=(SILVER,)))
    assert placed == []
    assert ended.reason.startswith("no valid host among 0")
    assert "As 'silver': no valid host among 0" in ended.reason


async def test_a_redelivered_request_reports_the_second_flavor_that_it_holds() -> None:
    placement, request = metals(0, 2), a_request(flavor=GOLD, or_else=(SILVER,))
    await said(a_scheduler(placement), request)
    (again,), _ = await said(a_scheduler(placement), request)
    assert again.spec.flavor == SILVER


# Fewer instances that are enough


@pytest.mark.parametrize(
    ("hosts", "at_least", "placed"),
    [(3, 0, 0), (3, 2, 3), (2, 2, 2), (1, 2, 0), (9, 2, 5)],
    ids=["all or none", "as many as fit", "just enough", "too few", "all"],
)
async def test_as_many_as_fit_if_these_are_enough(hosts: int, at_least: int, placed: int) -> None:
    placement = FakePlacement.of(
        *(a_candidate(number, free={"VCPU": 8, "MEMORY_MB": 1024}) for number in range(hosts))
    )
    request = a_request(instances=5, flavor=BIG, at_least=at_least)
    found, ended = await said(a_scheduler(placement), request)
    assert [placed.build for placed in found] == list(request.instances[:placed])
    assert [one for end in ended for one in end.instances] == list(request.instances[placed:])
    assert len(placement.held) == placed
    assert set(placement.retired) == set(request.instances[placed:])
    assert all(end.reason.startswith("no valid host") for end in ended)


async def test_what_some_instances_would_take_explains_the_missing_capacity() -> None:
    placement = FakePlacement.of(
        *(a_candidate(number, free={"VCPU": 8, "MEMORY_MB": 1024}) for number in range(3))
    )
    _, (ended,) = await said(a_scheduler(placement), a_request(instances=5, flavor=BIG))
    assert [(removal.code, removal.removed) for removal in ended.decision.removals] == [("chosen", 3)]
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
    assert [removal.removed for removal in ended.decision.removals] == [
        2
    ]  # of the flavor asked for, before any was placed


# Groups, and other instances


def a_group(policy: GroupPolicy, **members: tuple[str, ...]) -> ServerGroup:
    return ServerGroup(id=GROUP, name="g", policy=policy, members=members)


@pytest.mark.parametrize(
    ("policy", "hosts", "placed"), [("anti-affinity", 3, 3), ("affinity", 3, 1), ("soft-anti-affinity", 3, 3)]
)
async def test_instances_of_one_request_see_one_another_in_their_group(
    policy: GroupPolicy, hosts: int, placed: int
) -> None:
    placement = FakePlacement.of(*(a_candidate(number) for number in range(hosts)))
    request = a_request(instances=3, hints=Hints(group=GROUP))
    found, ended = await said(a_scheduler(placement, a_group(policy)), request)
    assert ended == []
    assert len({placed.chosen.root for placed in found}) == placed
    assert all(claim.group == GROUP for order in placement.orders for claim in order.claims)


async def test_requests_of_a_batch_see_one_another_in_their_group_and_the_last_finds_no_host() -> None:
    placement = FakePlacement.of(*(a_candidate(number) for number in range(3)))
    requests = [a_request(number, hints=Hints(group=GROUP)) for number in range(4)]
    scheduler = a_scheduler(placement, a_group("anti-affinity"))
    found = [verdict for verdict in await scheduler.place_many(requests) if isinstance(verdict, list | tuple)]
    roots = [message.chosen.root for some in found for message in some if isinstance(message, BuildPlaced)]
    assert len(roots) == len(set(roots)) == 3


async def test_a_group_that_there_is_not_is_named() -> None:
    placement = FakePlacement.of(a_candidate(1))
    _, (ended,) = await said(a_scheduler(placement), a_request(hints=Hints(group=GROUP)))
    assert ended.reason == f"hints.group: there is no server group {GROUP} in this project"
    assert placement.orders == []


@pytest.mark.parametrize(("hint", "beside"), [("same_host", True), ("different_host", False)])
async def test_beside_another_instance_or_not(hint: str, beside: bool) -> None:
    placement = FakePlacement.of(*(a_candidate(number) for number in range(4)))
    scheduler = a_scheduler(placement)
    (other,), _ = await said(scheduler, a_request(1))
    hints = msgspec.convert({hint: [other.build]}, Hints)
    (found,), _ = await said(scheduler, a_request(2, hints=hints))
    assert (found.chosen.root == other.chosen.root) == beside


async def test_a_record_is_small() -> None:
    placement = FakePlacement.of(*(a_candidate(number, free={"VCPU": 8 + number}) for number in range(9)))
    (placed,), _ = await said(a_scheduler(placement), a_request(flavor=Flavor(name="f", vcpus=1)))
    record = placed.decision.record
    assert record is not None
    assert len(record.hosts) <= 8
    assert len(msgspec.json.encode(record)) < 1200
    assert placed.spec.flavor != SMALL

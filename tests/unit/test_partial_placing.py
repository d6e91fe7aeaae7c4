"""Other flavors that would do, and fewer instances that are enough."""

from dataclasses import replace

import msgspec
import pytest
from msgspec import structs

from bus.requests import Flavor, Hints
from scheduler_worker import ChoicePolicy
from scheduler_worker.placing import Scheduler
from tests.support.ids import uid
from tests.support.ranking_builders import a_hall, free
from tests.support.scheduler_builders import SMALL, FakePlacement, a_candidate, a_request
from tests.support.schedulers import allocations_of, placed_and_ended, scheduler_of
from tests.support.virtual_time import TurnedClock

GOLD = Flavor(name="gold", extra_specs={"resources:CUSTOM_GOLD": "1", "resources:VCPU": "0"})
SILVER = Flavor(name="silver", extra_specs={"resources:CUSTOM_SILVER": "1", "resources:VCPU": "0"})
BIG = Flavor(name="big", vcpus=8, memory_mb=1024)


def metals(gold: int, silver: int) -> FakePlacement:
    nodes = [a_candidate(number, free={"CUSTOM_GOLD": 1}) for number in range(gold)]
    nodes += [a_candidate(100 + number, free={"CUSTOM_SILVER": 1}) for number in range(silver)]
    return FakePlacement(*nodes)


def a_scheduler(placement: FakePlacement) -> Scheduler:
    return scheduler_of(placement, clock=TurnedClock().clock, allocations=allocations_of(placement))


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
    placed, ended = await placed_and_ended(a_scheduler(metals(gold, silver)), request)
    assert ([one.spec.flavor.name for one in placed], ended) == (flavors, [])
    used = {one.decision.record.flavor for one in placed if one.decision.record}
    assert used == {["gold", "silver"].index(flavors[0])}


async def test_no_host_for_any_flavor_has_a_reason_for_each() -> None:
    placed, (ended,) = await placed_and_ended(
        a_scheduler(metals(0, 0)), a_request(flavor=GOLD, or_else=(SILVER,))
    )
    assert placed == []
    assert ended.reason.startswith("no valid host among 0")
    assert "As 'silver': no valid host among 0" in ended.reason


async def test_a_redelivered_request_reports_the_second_flavor_that_it_holds() -> None:
    placement, request = metals(0, 2), a_request(flavor=GOLD, or_else=(SILVER,))
    await placed_and_ended(a_scheduler(placement), request)
    (again,), _ = await placed_and_ended(a_scheduler(placement), request)
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
    found, ended = await placed_and_ended(a_scheduler(placement), request)
    assert [placed.build for placed in found] == list(request.instances[:placed])
    assert [instance for end in ended for instance in end.instances] == list(request.instances[placed:])
    assert len(placement.held) == placed
    assert set(placement.retired) == set(request.instances[placed:])
    assert all(end.reason.startswith("no valid host") for end in ended)


async def test_the_hosts_that_earlier_instances_would_take_are_counted_as_such() -> None:
    """Hosts of siblings are not counted as hosts with too little capacity: each instance alone would fit."""
    placement = of_eight_processors(3)
    _, (ended,) = await placed_and_ended(a_scheduler(placement), a_request(instances=5, flavor=BIG))
    [removal] = ended.decision.removals
    assert (removal.code, removal.removed, removal.left, len(removal.hosts)) == ("chosen", 3, 0, 3)
    assert "taken by other instances of the request: 3 hosts" in ended.reason
    assert ended.decision.code == "room" and not ended.decision.nearest
    assert ended.reason.endswith("free capacity for 3 of the 5 instances needed at once")


async def test_missing_instances_may_get_the_next_flavor() -> None:
    request = a_request(instances=3, flavor=GOLD, or_else=(SILVER,), at_least=1)
    placed, ended = await placed_and_ended(a_scheduler(metals(1, 1)), request)
    assert [one.spec.flavor.name for one in placed] == ["gold", "silver"]
    assert [end.instances for end in ended] == [request.instances[2:]]


async def test_missing_instances_get_the_reasons_of_every_flavor() -> None:
    request = a_request(instances=3, flavor=GOLD, or_else=(SILVER,), at_least=1)
    placed, (ended,) = await placed_and_ended(a_scheduler(metals(0, 2)), request)
    assert [one.spec.flavor.name for one in placed] == ["silver", "silver"]
    assert ended.reason.startswith("no valid host among 2")
    assert "As 'silver': no valid host among 2" in ended.reason
    # of the flavor asked for, before any was placed
    assert [removal.removed for removal in ended.decision.removals] == [2]


@pytest.mark.parametrize(("hint", "beside"), [("same_host", True), ("different_host", False)])
async def test_same_host_and_different_host_hints(hint: str, beside: bool) -> None:
    placement = FakePlacement(*(a_candidate(number) for number in range(4)))
    scheduler = a_scheduler(placement)
    (other,), _ = await placed_and_ended(scheduler, a_request(1))
    hints = msgspec.convert({hint: [other.build]}, Hints)
    (found,), _ = await placed_and_ended(scheduler, a_request(2, hints=hints))
    assert (found.chosen.root == other.chosen.root) == beside


async def test_a_record_is_small() -> None:
    placement = FakePlacement(*(a_candidate(number, free={"VCPU": 8 + number}) for number in range(9)))
    (placed,), _ = await placed_and_ended(a_scheduler(placement), a_request(flavor=Flavor(name="f", vcpus=1)))
    record = placed.decision.record
    assert record is not None
    assert len(record.hosts) <= 8
    assert len(msgspec.json.encode(record)) < 1200
    assert placed.spec.flavor != SMALL


def test_instances_next_to_another_instance_need_not_be_together() -> None:
    hosts = [free(number, 9000 + number, vcpus=1) for number in (1, 2, 3)]
    hall = a_hall(*hosts, policy=ChoicePolicy.from_names(weighers=["ram"]))
    order = hall.order(a_request(instances=2))
    alternative = replace(order.alternative, same=frozenset([uid(1, "c"), uid(2, "c")]))
    [answer] = hall.choosing().choose([structs.replace(order, attempts=((alternative,),))])
    assert [pick.choices[0].host for pick in answer.picks] == ["host2", "host1"]

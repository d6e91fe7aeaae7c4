"""Other flavors that would do, and fewer instances that are enough."""

import pytest

from bus.requests import Flavor
from scheduler_worker.placing.scheduler import Scheduler
from tests.support.scheduler_builders import FakePlacement, a_candidate, a_request
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

"""Instances that use the capacity of a reservation."""

from typing import Any

import pytest

from bus.messages import BuildPlaced, BuildRequested, BuildUnplaceable, HostReported
from bus.reports import HostState
from bus.requests import Flavor
from features.reservations.drawn_reservations import DrawnReservations
from features.reservations.filling import ReservationFiller
from features.reservations.messages import (
    FillReservation,
    FindReservations,
    MakeReservation,
    Reservation,
    ReservationEditRequested,
    ReservationFilled,
)
from features.reservations.operations import ReservationOperations
from placement_worker.testing import Placement
from scheduler_worker.testing import Scheduler
from tests.support.ids import uid
from tests.support.placement_builders import a_report
from tests.support.schedulers import messages_of, narrowing_of, scheduler_of

R1 = uid(1, "7")
LARGE, SMALL = Flavor(name="large", vcpus=8), Flavor(name="small", vcpus=2)


@pytest.fixture
async def hosts(placement: Placement) -> Placement:
    """Report three hosts with eight processors each."""
    await placement.reports.report_many([a_report(number) for number in (1, 2, 3)])
    return placement


async def a_scheduler_for(placement: Placement) -> Scheduler:
    scheduler = scheduler_of(placement)
    await report_hosts(scheduler)
    return scheduler


async def report_hosts(scheduler: Scheduler) -> None:
    for host in (1, 2, 3):
        states = (HostState(root=uid(host, "a"), host=f"host-{host}"),)
        await scheduler.handle(HostReported(cell="c1", agent=f"agent-{host}", sequence=1, hosts=states))


def filler_of(scheduler: Scheduler) -> ReservationFiller:
    return ReservationFiller(scheduler, narrowing_of(scheduler, DrawnReservations))


async def reserve(placement: Placement, scheduler: Scheduler, **fields: Any) -> ReservationFilled:
    given: dict[str, Any] = {
        "id": R1,
        "name": "season",
        "project": "p1",
        "flavor": LARGE,
        "count": 2,
    } | fields
    order = MakeReservation(reservation=Reservation(**given))
    await placement.of(ReservationOperations).edit(ReservationEditRequested(edit=order))
    filler = filler_of(scheduler)
    return await filler.fill(FillReservation(reservation=R1))


async def undrawn(placement: Placement) -> int:
    found = await placement.of(ReservationOperations).find(FindReservations(ids=(R1,)))
    return sum(bool(slot.held) for slot in found.slots.get(R1, ()))


async def placed_on(scheduler: Scheduler, *requests: BuildRequested) -> list[str]:
    """Return the hosts of all requests; "" for a request without a host."""
    messages = await messages_of(scheduler, *requests)
    return [each.chosen.host if isinstance(each, BuildPlaced) else "" for each in messages]


async def reason_of(scheduler: Scheduler, request: BuildRequested) -> str:
    [refused] = await messages_of(scheduler, request)
    assert isinstance(refused, BuildUnplaceable)
    return refused.reason

"""A placement with three hosts that keeps headroom."""

from bus.aggregates import AggregateEditRequested, MakeAggregate
from bus.requests import Flavor
from features.headroom.controller import HeadroomController
from features.headroom.messages import FindHeadroom, Headroom
from features.reservations.messages import MakeReservation, Reservation, ReservationEditRequested
from features.reservations.operations import ReservationOperations
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_report

R1 = uid(1, "7")


async def report_three_hosts(placement: Placement) -> None:
    """Report three hosts with eight processors: hosts 1 and 2 are in rack r1, host 3 is in rack r2."""
    await placement.reports.report_many([a_report(number) for number in (1, 2, 3)])
    for number, rack, names in ((1, "r1", ("host-1", "host-2")), (2, "r2", ("host-3",))):
        order = MakeAggregate(
            aggregate=uid(number, "e"), name=rack, metadata={"topology:rack": rack}, hosts=names
        )
        await placement.aggregates.edit(AggregateEditRequested(edit=order))


async def keep(placement: Placement, *levels: str) -> None:
    reservation = Reservation(
        id=R1, name="headroom", flavor=Flavor(name="any"), use="failover", levels=levels, returns=False
    )
    await placement.of(ReservationOperations).edit(
        ReservationEditRequested(edit=MakeReservation(reservation=reservation))
    )
    await adjusted(placement)


async def adjusted(placement: Placement) -> Headroom:
    await placement.of(HeadroomController).adjust()
    [found] = (await placement.of(HeadroomController).find(FindHeadroom())).headrooms
    return found

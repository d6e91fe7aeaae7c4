"""Reserves the capacity that `berth move make-room` has made free."""

from collections.abc import Mapping, Sequence

from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.messages import BuildRequested
from features.planning.reserving import MadeRoom
from features.reservations.messages import Reservation
from features.reservations.new_reservations import create_reservation


async def reserve(
    bus: Bus,
    request: BuildRequested,
    name: str,
    purpose: str,
    seconds: float,
    hosts: Sequence[str],
    closed: Mapping[str, int],
) -> tuple[Reservation, str]:
    """Reserve the capacity of a request on some hosts for its project. `closed`: the number of instances that
    fit on each root that is closed to other requests. Return the reservation, and why it does not hold all of
    the capacity.
    """
    reservation = Reservation(
        id=Clock().uuid(),
        name=name,
        project=request.project,
        purpose=purpose,
        flavor=request.flavor,
        count=len(request.instances),
        hosts=tuple(hosts),
        use="open",
        ends=bus.clock.now() + seconds,
        returns=False,
    )
    filled = await create_reservation(bus, reservation, bus.clock.now(), closed)
    return reservation, filled.reason


PART = MadeRoom(reserve)

"""`berth project reservation` over a placement with hosts."""

from collections.abc import AsyncIterator

import pytest

from bus.requests import Flavor
from features.reservations.messages import MakeReservation, Reservation, ReservationEditRequested
from features.reservations.operations import ReservationOperations
from features.reservations.tests.support.reservation_parts import draw_from
from placement_worker.testing import Placement
from tests.support.command_line import a_served_placement
from tests.support.ids import uid
from tests.support.placement_builders import a_report
from tests.support.placement_calls import report


@pytest.fixture
async def placement(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Placement]:
    async with a_served_placement(monkeypatch, "c1") as placement:
        assert await report(placement, a_report(1)) == [""]
        yield placement


async def draw(placement: Placement) -> str:
    """Let instance 2 draw one of the four processors of a reservation; return the reservation's id."""
    id_ = uid(1, "7")
    season = Reservation(id=id_, name="season", project="p1", flavor=Flavor(name="m", vcpus=4))
    await placement.of(ReservationOperations).edit(
        ReservationEditRequested(edit=MakeReservation(reservation=season))
    )
    await draw_from(placement, id_)
    return id_

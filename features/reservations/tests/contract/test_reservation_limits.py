"""Thousands of reservations: queries are answered in pages, and the settings limit their number."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from berth.kit import Settings
from bus.requests import Flavor
from bus.vocabulary import LimitReached
from features.reservations import store as stored
from features.reservations.messages import (
    EndReservation,
    FindReservations,
    MakeReservation,
    Reservation,
    ReservationEdited,
    ReservationEditRequested,
    ReservationResult,
    every_reservation,
)
from features.reservations.operations import ReservationOperations
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_placement
from tests.support.virtual_time import TurnedClock


@pytest.fixture
async def tiny(url: str, turned: TurnedClock) -> AsyncIterator[Placement]:
    """Yield a placement with small limits."""
    settings = Settings().having(max_reservations=3, max_reservations_project=2, max_reservation_slots=5)
    async with a_placement(url, turned.clock, settings) as placement:
        yield placement


def a_reservation(number: int, project: str = "p1", **fields: Any) -> Reservation:
    return Reservation(
        id=uid(number, "7"), name=f"r{number}", project=project, flavor=Flavor(name="m", vcpus=1), **fields
    )


async def make(placement: Placement, reservation: Reservation) -> ReservationResult:
    order = ReservationEditRequested(edit=MakeReservation(reservation=reservation))
    return (await placement.of(ReservationOperations).edit(order)).result


async def test_a_reservation_that_is_deleted_between_two_pages_hides_no_other(placement: Placement) -> None:
    made = [a_reservation(number, purpose="x" * 250) for number in range(3000)]
    async with placement.database.write() as tx:
        for reservation in made:
            await stored.make(tx, reservation, 1.0)
    first = await placement.of(ReservationOperations).find(FindReservations(slots=False))
    gone = EndReservation(reservation=first.last, forget=True)
    await placement.of(ReservationOperations).edit(ReservationEditRequested(edit=gone))
    rest = await every_reservation(
        placement.of(ReservationOperations).find, FindReservations(slots=False, after=first.last)
    )
    assert len(first.reservations) + len(rest.reservations) == len(made)


async def test_the_default_limit_refuses_a_million_instances(placement: Placement) -> None:
    assert isinstance(await make(placement, a_reservation(1, count=1_000_000)), LimitReached)


async def test_reservations_are_limited_by_project_and_in_all(tiny: Placement) -> None:
    for number, project in ((1, "p1"), (2, "p1")):
        assert isinstance(await make(tiny, a_reservation(number, project)), ReservationEdited)
    refused = await make(tiny, a_reservation(3))
    assert isinstance(refused, LimitReached) and "2 reservations of project p1" in str(refused)
    assert isinstance(await make(tiny, a_reservation(4, "p2")), ReservationEdited)
    refused = await make(tiny, a_reservation(5, "p3"))
    assert isinstance(refused, LimitReached) and refused.setting == "max_reservations"
    repeated = await make(tiny, a_reservation(1))
    assert isinstance(repeated, ReservationEdited) and not repeated.changed

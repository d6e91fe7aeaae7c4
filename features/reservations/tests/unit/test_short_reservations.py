"""Reservations that hold less than they should are a problem."""

from typing import Any

import pytest

from bus.problems import KnownProblem
from bus.requests import Flavor
from features.reservations.messages import Reservation, ReservationsFound
from features.reservations.problems import short
from tests.support.ids import uid

NOW = 1000.0


def found(made: int, **fields: Any) -> list[KnownProblem]:
    flavor = Flavor(name="small", vcpus=1)
    given: dict[str, Any] = {"id": uid(1), "name": "black friday", "flavor": flavor, "count": 3}
    reservation = Reservation(**given | fields)
    return short(ReservationsFound(reservations=(reservation,), made={uid(1): made}), NOW)


@pytest.mark.parametrize(
    ("made", "fields"),
    [
        (3, {}),
        (0, {"holds_from": NOW + 1, "begins": NOW + 2}),
        (0, {"ends": NOW - 1}),
        (0, {"use": "failover", "levels": ("host",)}),
    ],
)
def test_a_reservation_with_all_that_it_should_hold_now_is_no_problem(
    made: int, fields: dict[str, Any]
) -> None:
    assert found(made, **fields) == []


def test_a_reservation_without_all_its_slots_is_a_problem() -> None:
    [problem] = found(2, begins=900.0)
    assert (problem.kind, problem.object, problem.since) == ("reservation-short", "black friday", 900.0)
    assert "`berth project reservation show 'black friday'`" in problem.do

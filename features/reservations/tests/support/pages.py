"""The page about reservations, for tests of all pages of the control room."""

from typing import Any

from bus.worker import Worker, answers
from features.reservations.messages import (
    EDIT_RESERVATION,
    FILL_RESERVATION,
    RESERVATIONS,
    FillReservation,
    ReservationFilled,
)
from features.reservations.new_reservations import NewReservation, create_reservation, new_reservation
from tests.support.ids import uid

PAGES = {"reservations": "/reservations"}
VALUES: dict[str, str] = {}
FORMS = {
    "/reservations": [
        ("/reservations", "reserve", {"act": "create", "name": "r", "project": "p1", "vcpus": "1"}),
        ("/reservations", "reserve", {"act": "delete", "reservation": uid(4)}),
    ]
}
ANSWERED = (EDIT_RESERVATION, RESERVATIONS, FILL_RESERVATION)
PARAMETERS = {"/reservations": ("project", "skip", "done", "name", "made")}
STREAMS = ("/reservations",)
FORM_FIELDS: dict[str, dict[str, dict[str, str]]] = {
    "/reservations": {
        "act": {},
        "project": {"act": "create", "name": "r"},
        **{
            name: {"act": "create", "name": "r"}
            for name in ("name", "count", "vcpus", "begin", "host", "extra_spec")
        },
        "reservation": {"act": "delete"},
    }
}


async def filled(_: FillReservation) -> ReservationFilled:
    return ReservationFilled(placed=1)


SCHEDULERS = (Worker("scheduler", answers=[answers(FILL_RESERVATION, filled)]),)


def workers() -> list[Any]:
    return []


async def fill(berth: Any) -> None:
    """Make three reservations, of which one is drawn from and one is too large."""
    now = berth.bus.clock.now()
    for name, options in (
        ("season", NewReservation(vcpus=2, memory_mb=1024, disk_gb=10, count=3, end="+30d", purpose="sale")),
        ("too-large", NewReservation(vcpus=4000, count=2)),
        ("later", NewReservation(begin="+2h", hold_from="+1h", end="+8h", open=True, no_returns=True)),
    ):
        reservation = new_reservation(name, "shop", options, now)
        await create_reservation(berth.bus, reservation, now)
        if name == "season":
            await berth.boot(project="shop", hint=(f"reservation={reservation.id}",))

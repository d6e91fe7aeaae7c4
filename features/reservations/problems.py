"""The problem that reservations hold less capacity than they should."""

from shlex import quote

from berth.kit import ProblemReader, ProblemsPart
from bus.problems import Alert, KnownProblem, ProblemKind
from control_room.kit import listed
from features.reservations.messages import (
    RESERVATIONS,
    FindReservations,
    ReservationsFound,
    every_reservation,
)

RESERVATION_SHORT = ProblemKind(
    name="reservation-short",
    severity="warning",
    says="Reservations that hold less capacity than they should: {reservations}.",
    consequence="No open host has free capacity for some of their slots, for example after a host failed."
    " Builds that count on the missing slots may find no host.",
    do="Run `berth project reservation list` and `berth project reservation show {first}`, then add hosts or"
    " shrink the reservation.",
    link="/reservations",
    alert=Alert(
        name="BerthReservationsShort",
        expr="max(berth_reservations_short) > 0",
        after="5m",
        values={"reservations": "{{ $value }}", "first": "NAME"},
    ),
)


def short(found: ReservationsFound, now: float) -> list[KnownProblem]:
    """Return the problem that reservations lack slots which they should hold now, if any do. Headroom, whose
    slots placement computes, has a problem of its own.
    """
    lacking = [
        each
        for each in found.reservations
        if not each.levels
        and each.state(now) in ("held", "active")
        and found.made.get(each.id, 0) < each.count
    ]
    if not lacking:
        return []
    names = [each.name for each in lacking]
    since = min(each.begins if each.state(now) == "active" else each.holds_from for each in lacking)
    reservations = listed(names)
    return [RESERVATION_SHORT.problem(reservations, since, reservations=reservations, first=quote(names[0]))]


async def find(reader: ProblemReader) -> list[KnownProblem]:
    query = FindReservations(slots=False)
    return short(await every_reservation(reader.asker(RESERVATIONS), query), reader.now)


PART = ProblemsPart(kinds=(RESERVATION_SHORT,), find=find, asks=(RESERVATIONS,))

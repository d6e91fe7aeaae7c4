"""Operations on reservations and failover headroom: find, edit and end them."""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import structs

from berth.operations.publishing import checked
from berth.settings import BadSetting
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.domains import Level
from bus.errors import OperationRefused
from bus.requests import Flavor
from bus.reservations import (
    FAILOVER,
    EndReservation,
    FindHeadroom,
    FindReservations,
    Headroom,
    MakeReservation,
    Reservation,
    ReservationEdit,
    ReservationEdited,
    ReservationEditRequested,
    ReservationOver,
    ReservationsFound,
    every_reservation,
)
from bus.vocabulary import LimitReached, Missing, Taken, seconds_of

_HEADROOM = "headroom"  # name of the reservations that hold the headroom's slots


async def find_reservations(bus: Bus, project: str = "") -> ReservationsFound:
    return await every_reservation(bus.asker(topics.RESERVATIONS), checked(FindReservations(project=project)))


async def reservation_named(bus: Bus, name_or_id: str, project: str = "") -> ReservationsFound:
    """Return the reservation with this uuid or name; raise OperationRefused unless exactly one exists. A name
    is searched among the reservations of `project`, if given, then among those from which builds of any
    project may draw; without `project`, among all.
    """
    try:
        query = FindReservations(ids=(str(uuid.UUID(name_or_id)),))
    except ValueError:
        query = checked(FindReservations(name=name_or_id, project=project))
    found = await bus.asker(topics.RESERVATIONS)(query)
    if not found.reservations and query.project:
        found = await bus.asker(topics.RESERVATIONS)(checked(FindReservations(name=name_or_id)))
        shared = tuple([each for each in found.reservations if each.serves("")])
        found = structs.replace(found, reservations=shared)
    if not found.reservations:
        where = f" in project {project}" if project else ""
        missing = f"there is no reservation {name_or_id}{where}"
        raise OperationRefused(f"{missing}: `berth reserve list` lists them")
    if len(found.reservations) > 1:
        projects = ", ".join(sorted(each.project or "any" for each in found.reservations))
        raise OperationRefused(f"{name_or_id} is a reservation of projects {projects}: give --project")
    return found


async def edit_reservation(bus: Bus, edit: ReservationEdit) -> ReservationEdited:
    """Create, extend or end a reservation; raise OperationRefused if placement refuses."""
    match (await bus.asker(topics.EDIT_RESERVATION)(checked(ReservationEditRequested(edit=edit)))).result:
        case ReservationEdited() as edited:
            return edited
        case ReservationOver(reservation=name):
            raise OperationRefused(f"reservation {name} has ended")
        case Missing(names=names):
            raise OperationRefused(f"there is no reservation {', '.join(names)}")
        case LimitReached() as reached:
            raise OperationRefused(str(reached))
        case Taken(value=value):
            raise OperationRefused(f"there is a reservation {value} in this project already")
    raise OperationRefused("other processes are changing it: try again")


async def find_headroom(bus: Bus) -> Sequence[Headroom]:
    return (await bus.asker(topics.HEADROOM)(FindHeadroom())).headrooms


async def set_headroom(bus: Bus, levels: Sequence[str]) -> bool:
    """Reserve headroom for the loss of any one domain of the given levels, in place of the present headroom;
    return False if headroom for exactly these levels exists already.
    """
    if not levels:
        raise BadSetting("name a level: `host`, or a level of labels such as `rack`")
    if len(set(levels)) < len(levels):
        raise BadSetting("a level is given twice")
    for level in levels:
        try:
            msgspec.convert(level, Level)
        except msgspec.ValidationError:
            why = "a level is `host`, or a word of letters, digits, - and _ that begins with a letter"
            raise BadSetting(f"{level!r}: {why}, such as `rack`") from None
    reservation = Reservation(
        id=Clock().uuid(),
        name=_HEADROOM,
        purpose="failover",
        flavor=Flavor(name="any"),
        use=FAILOVER,
        levels=tuple(levels),
        returns=False,
    )
    edit = MakeReservation(reservation=reservation)
    checked(ReservationEditRequested(edit=edit))  # refuse invalid levels before the present headroom ends
    existing = await find_headroom(bus)
    if any(each.reservation.levels == reservation.levels for each in existing):
        return False
    for each in existing:
        await edit_reservation(bus, EndReservation(reservation=each.reservation.id, forget=True))
    await edit_reservation(bus, edit)
    return True


async def unset_headroom(bus: Bus) -> int:
    """End the headroom and release all its slots; return how many headroom reservations there were."""
    existing = await find_headroom(bus)
    for each in existing:
        await edit_reservation(bus, EndReservation(reservation=each.reservation.id, forget=True))
    return len(existing)


def time_given(option: str, given: str, now: float) -> float:
    """Return the time that an option's text such as `+2h` or `2026-12-24T08:00` means (UTC without another
    offset); 0 for an empty text. Raise BadSetting, which names the `option`, for any other text.
    """
    if not given:
        return 0.0
    try:
        if given.startswith("+"):
            return now + seconds_of(given[1:])
        read = datetime.fromisoformat(given)
    except (ValueError, KeyError, IndexError):
        raise BadSetting(f"{option} {given}: a time like 2026-12-24T08:00, or +2h from now") from None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()

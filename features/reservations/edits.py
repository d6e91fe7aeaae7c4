"""Operations on reservations: find, edit and end them."""

import uuid
from collections.abc import Sequence
from difflib import get_close_matches

from msgspec import structs

from berth.kit import SHORTEST_ID, checked, only_one
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.vocabulary import LimitReached, Missing, Taken
from features.reservations.messages import (
    EDIT_RESERVATION,
    RESERVATIONS,
    FindReservations,
    LevelsCovered,
    LevelsUnknown,
    ReservationEdit,
    ReservationEdited,
    ReservationEditRequested,
    ReservationOver,
    ReservationsFound,
    every_reservation,
)


class LevelsDropped(OperationRefused):
    """A failover reservation of this name covers levels that the edit would drop without naming them."""

    def __init__(self, levels: Sequence[str], dropped: Sequence[str]) -> None:
        super().__init__(f"{' and '.join(dropped)} would not be covered any more")
        self.levels = levels
        self.dropped = dropped


def unknown_levels(levels: Sequence[str], known: Sequence[str]) -> str:
    """Return why levels are refused, with the known ones."""
    level = levels[0]
    like = get_close_matches(level, known, 1)
    meant = f"; did you mean {like[0]}?" if like else ""
    return f"no host has a label of level {level}{meant} (levels of this region: {', '.join(known)})"


async def find_reservations(bus: Bus, project: str = "") -> ReservationsFound:
    """Return all reservations, or those of one project."""
    return await every_reservation(bus.asker(RESERVATIONS), checked(FindReservations(project=project)))


async def reservation_named(bus: Bus, name_or_id: str, project: str = "") -> ReservationsFound:
    """Return the reservation with this name or uuid, or with a uuid that begins with these 8 or more
    characters; raise OperationRefused unless exactly one exists. A name is searched among the reservations of
    `project`, if given, then among those from which builds of any project may draw; without `project`, among
    all.
    """
    try:
        query = FindReservations(ids=(str(uuid.UUID(name_or_id)),))
    except ValueError:
        query = checked(FindReservations(name=name_or_id, project=project))
    found = await bus.asker(RESERVATIONS)(query)
    if not found.reservations and query.project:
        found = await bus.asker(RESERVATIONS)(checked(FindReservations(name=name_or_id)))
        shared = tuple([each for each in found.reservations if each.serves("")])
        found = structs.replace(found, reservations=shared)
    if not found.reservations and len(name_or_id) >= SHORTEST_ID:
        every = [each.id for each in (await find_reservations(bus, project)).reservations]
        if id_ := only_one(every, name_or_id.lower(), name_or_id, "ids of reservations"):
            found = await bus.asker(RESERVATIONS)(FindReservations(ids=(id_,)))
    if not found.reservations:
        where = f" in project {project}" if project else ""
        missing = f"there is no reservation {name_or_id}{where}"
        raise OperationRefused(f"{missing}: `berth project reservation list` lists them")
    if len(found.reservations) > 1:
        projects = ", ".join(sorted(each.project or "any" for each in found.reservations))
        raise OperationRefused(f"{name_or_id} is a reservation of projects {projects}: give --project")
    return found


async def edit_reservation(bus: Bus, edit: ReservationEdit) -> ReservationEdited:
    """Create, extend or end a reservation; raise OperationRefused if placement refuses."""
    match (await bus.asker(EDIT_RESERVATION)(checked(ReservationEditRequested(edit=edit)))).result:
        case ReservationEdited() as edited:
            return edited
        case ReservationOver(reservation=name):
            raise OperationRefused(f"reservation {name} has ended")
        case Missing(names=names):
            raise OperationRefused(f"there is no reservation {', '.join(names)}")
        case LevelsUnknown(levels=levels, known=known):
            raise OperationRefused(unknown_levels(levels, known))
        case LevelsCovered(levels=levels, dropped=dropped):
            raise LevelsDropped(levels, dropped)
        case LimitReached() as reached:
            raise OperationRefused(str(reached))
        case Taken(value=value):
            raise OperationRefused(f"there is a reservation {value} in this project already")
    raise OperationRefused("other processes are changing it: try again")

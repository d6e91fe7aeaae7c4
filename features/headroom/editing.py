"""Operations on failover headroom: find, set and unset it."""

from collections.abc import Sequence

import msgspec

from berth.operations.publishing import checked
from berth.settings import BadSetting
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.domains import Level
from bus.requests import Flavor
from features.headroom.messages import HEADROOM, FindHeadroom, Headroom
from features.reservations.edits import edit_reservation
from features.reservations.messages import (
    FAILOVER,
    EndReservation,
    MakeReservation,
    Reservation,
    ReservationEditRequested,
)

_HEADROOM = "headroom"  # name of the reservations that hold the headroom's slots


async def find_headroom(bus: Bus) -> Sequence[Headroom]:
    return (await bus.asker(HEADROOM)(FindHeadroom())).headrooms


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

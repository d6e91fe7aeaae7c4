"""Operations on failover headroom: find, set and unset it."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from berth.kit import BadSetting
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.domains import Level
from bus.errors import OperationRefused
from bus.requests import Flavor
from control_room.kit import several
from features.headroom.messages import HEADROOM, FindHeadroom, Headroom
from features.reservations.edits import LevelsDropped, edit_reservation
from features.reservations.messages import FAILOVER, EndReservation, MakeReservation, Reservation

_HEADROOM = "headroom"  # name of the reservations that hold the headroom's slots


class HeadroomWouldShrink(OperationRefused):
    """Headroom was not set, because the present one covers other levels; the text says what would be lost."""


async def find_headroom(bus: Bus) -> Sequence[Headroom]:
    return (await bus.asker(HEADROOM)(FindHeadroom())).headrooms


@dataclass(frozen=True)
class HeadroomSet:
    """The result of setting headroom."""

    changed: bool  # False: headroom for exactly these levels exists already
    dropped: Sequence[str] = ()  # levels that are not covered any more


async def set_headroom(bus: Bus, levels: Sequence[str], replace: bool = False) -> HeadroomSet:
    """Reserve headroom for the loss of any one domain of the given levels.

    Present headroom keeps the slots that the given levels need. If it covers other levels, too, raise
    HeadroomWouldShrink; with `replace`, these are not covered any more.
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
    try:
        edited = await edit_reservation(bus, MakeReservation(reservation=reservation))
    except LevelsDropped as refused:
        if not replace:
            raise HeadroomWouldShrink(await _loss(bus, refused, levels)) from None
        edit = MakeReservation(reservation=reservation, replaces=tuple(refused.dropped))
        return HeadroomSet((await edit_reservation(bus, edit)).changed, refused.dropped)
    return HeadroomSet(edited.changed)


async def _loss(bus: Bus, refused: LevelsDropped, levels: Sequence[str]) -> str:
    """Return what would be lost if headroom for these levels replaced the present one."""
    present = await find_headroom(bus)
    slots = sum(each.slots for each in present if each.reservation.levels == tuple(refused.levels))
    now, then, lost = (" or ".join(each) for each in (refused.levels, levels, refused.dropped))
    return (
        f"headroom is kept for any one {now} ({several(slots, 'slot')}): for any one {then} only, the loss "
        f"of any one {lost} would not be covered any more, and the slots that only it needs would be released"
    )


async def unset_headroom(bus: Bus) -> int:
    """End the headroom and release all its slots; return how many headroom reservations there were."""
    existing = await find_headroom(bus)
    for each in existing:
        await edit_reservation(bus, EndReservation(reservation=each.reservation.id, forget=True))
    return len(existing)

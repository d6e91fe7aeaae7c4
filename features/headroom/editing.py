"""Operations on failover headroom: find, set and unset it."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from berth.kit import BadSetting, every_provider
from bus.clock import Clock
from bus.delivery.recording import RecordingBus
from bus.delivery.runner import Bus
from bus.domains import Level
from bus.errors import OperationRefused
from bus.requests import Flavor
from bus.resources import FindProviders
from control_room.kit import several
from features.headroom.messages import HEADROOM, FindHeadroom, Headroom
from features.reservations.edits import LevelsDropped, edit_reservation, unknown_levels
from features.reservations.messages import (
    FAILOVER,
    EndReservation,
    MakeReservation,
    Reservation,
    ReservationEditRequested,
    levels_unknown,
)

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
    _check_levels(levels)
    reservation = _reservation(levels)
    try:
        edited = await edit_reservation(bus, MakeReservation(reservation=reservation))
    except LevelsDropped as refused:
        if not replace:
            raise HeadroomWouldShrink(await _loss(bus, refused, levels)) from None
        edit = MakeReservation(reservation=reservation, replaces=tuple(refused.dropped))
        return HeadroomSet((await edit_reservation(bus, edit)).changed, refused.dropped)
    return HeadroomSet(edited.changed)


def _check_levels(levels: Sequence[str]) -> None:
    """Raise BadSetting if a level is no name of a level, or is given twice."""
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


def _reservation(levels: Sequence[str]) -> Reservation:
    return Reservation(
        id=Clock().uuid(),
        name=_HEADROOM,
        purpose="failover",
        flavor=Flavor(name="any"),
        use=FAILOVER,
        levels=tuple(levels),
        returns=False,
    )


@dataclass(frozen=True)
class SupposedHeadroom:
    """The headroom after a supposed edit: its levels, those that it would lose, and its slots now."""

    levels: Sequence[str]
    changed: bool
    dropped: Sequence[str]
    slots: int


async def suppose_headroom(bus: RecordingBus, levels: Sequence[str], replace: bool) -> SupposedHeadroom:
    """Return what `set_headroom` or, without levels, `unset_headroom` would do; raise the same errors."""
    present = await find_headroom(bus)
    kept = tuple(dict.fromkeys(level for each in present for level in each.reservation.levels))
    if levels:
        _check_levels(levels)
        query = FindProviders(parts=("owner", "labels"))
        labels = {level async for root in every_provider(bus, query) if root.agent for level in root.labels}
        if (refused := levels_unknown(levels, labels)) is not None:
            raise OperationRefused(unknown_levels(refused.levels, refused.known))
        await bus.rehearse(ReservationEditRequested(edit=MakeReservation(reservation=_reservation(levels))))
    for each in () if levels else present:
        edit = EndReservation(reservation=each.reservation.id, forget=True)
        await bus.rehearse(ReservationEditRequested(edit=edit))
    dropped = [level for level in kept if level not in levels]
    if levels and dropped and not replace:
        raise HeadroomWouldShrink(await _loss(bus, LevelsDropped(kept, dropped), levels))
    slots = sum(each.slots for each in present)
    return SupposedHeadroom(levels, {*levels} != {*kept}, dropped, slots)


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

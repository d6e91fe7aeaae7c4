"""`berth headroom`: keeps free capacity for the loss of any one host or rack."""

from collections.abc import Sequence
from typing import Annotated

from berth.commands.options import Commands, positional
from berth.commands.terminal import Cli
from berth.operations.reservations import edit_reservation
from berth.settings import BadSetting
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.requests import Flavor
from bus.reservations import FAILOVER, EndReservation, FindHeadroom, Headroom, MakeReservation, Reservation

commands = Commands(name="headroom", no_args_is_help=True)

_NAME = "headroom"


@commands.command("set")
async def set_levels(
    cli: Cli,
    levels: Annotated[
        list[str], positional("`host`, or a metadata key of aggregates, such as `rack`.", metavar="LEVEL")
    ],
) -> int:
    """Keep capacity so that any one host, or any one rack, can be lost.

    Placement reserves slots for the instances of each host, outside of that host, and adjusts them within
    seconds after each change. Evacuations draw from these slots. A rack is the hosts of the aggregates with
    one value of the metadata key `rack`: `berth aggregate create r1 --set rack=r1 --host host-1`.
    """
    if len(set(levels)) < len(levels):
        raise BadSetting("a level is given twice")
    reservation = Reservation(
        id=Clock().uuid(),
        name=_NAME,
        purpose="failover",
        flavor=Flavor(name="any"),
        use=FAILOVER,
        levels=tuple(levels),
        returns=False,
    )
    async with cli.bus("headroom") as bus:
        existing = await _found(bus)
        if [each for each in existing if each.reservation.levels == reservation.levels]:
            cli.tell(f"headroom is kept for {', '.join(levels)} already", levels=list(levels))
            return 0
        for each in existing:
            await edit_reservation(bus, EndReservation(reservation=each.reservation.id, forget=True))
        await edit_reservation(bus, MakeReservation(reservation=reservation))
    cli.tell(f"headroom is kept for any one {' or '.join(levels)} from now on", levels=list(levels))
    return 0


@commands.command("show")
async def show(cli: Cli) -> int:
    """Show whether all instances of any one failed host or rack fit into the reserved slots.

    The exit code is 1 if they do not fit, with the reasons.
    """
    async with cli.bus("headroom") as bus:
        found = await _found(bus)
    if not found:
        raise OperationRefused("no headroom is kept: `berth headroom set host` begins")
    for headroom in found:
        levels = " or ".join(headroom.reservation.levels)
        state = "kept" if headroom.kept else "not kept"
        figures = f"{headroom.slots} slots for {headroom.instances} instances in {headroom.domains} domains"
        cli.value(headroom, f"headroom for any one {levels}: {state}; {figures}")
        _reasons(cli, headroom.lacking)
    return 0 if all(headroom.kept for headroom in found) else 1


@commands.command("unset")
async def unset(cli: Cli) -> int:
    """Release all slots of the headroom, and keep none from now on."""
    async with cli.bus("headroom") as bus:
        found = await _found(bus)
        for headroom in found:
            await edit_reservation(bus, EndReservation(reservation=headroom.reservation.id, forget=True))
    cli.tell("no headroom is kept from now on" if found else "no headroom was kept", removed=len(found))
    return 0


async def _found(bus: Bus) -> Sequence[Headroom]:
    return (await bus.asker(topics.HEADROOM)(FindHeadroom())).headrooms


def _reasons(cli: Cli, lacking: Sequence[str]) -> None:
    if not cli.as_json:
        for reason in lacking:
            cli.line(f"  {reason}")

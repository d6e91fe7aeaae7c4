"""`berth host headroom`: keeps free capacity for the loss of any one host or rack."""

from collections.abc import Sequence
from typing import Annotated

from berth.kit import ActCli, BadSetting, Cli, Commands, option, positional
from bus.errors import OperationRefused
from control_room.kit import several
from features.headroom.editing import (
    HeadroomWouldShrink,
    SupposedHeadroom,
    find_headroom,
    set_headroom,
    suppose_headroom,
    unset_headroom,
)

commands = Commands(name="headroom", no_args_is_help=True)

_NONE = "none"


@commands.command("set")
async def set_levels(
    cli: ActCli,
    levels: Annotated[
        list[str],
        positional(
            "`host`, or a level of labels, such as `rack`; `none`: keep no headroom.", metavar="LEVEL"
        ),
    ],
    replace: bool = option(False, "Also if levels that are covered now are not covered any more."),
) -> None:
    """Keep capacity so that any one host, or any one rack, can be lost.

    Placement reserves slots for the instances of each host, outside of that host, and adjusts them within
    seconds after each change. Evacuations draw from these slots. A rack is the hosts with one label of the
    level `rack`: `berth host label host-1 host-2 rack=r1`. `none` releases all slots, and reserves no more.
    """
    if _NONE in levels and levels != [_NONE]:
        raise BadSetting(f"{_NONE} stands alone: it is no level")
    async with cli.bus("headroom") as bus:
        if cli.dry_run:
            try:
                would = await suppose_headroom(bus, [] if levels == [_NONE] else levels, replace)
            except HeadroomWouldShrink as refused:
                raise OperationRefused(f"{refused}; --replace does it") from None
            _tell_supposed(cli, would)
            return
        if levels == [_NONE]:
            removed = await unset_headroom(bus)
            cli.tell(
                "no headroom is kept from now on" if removed else "no headroom was kept", removed=removed
            )
            return
        try:
            made = await set_headroom(bus, levels, replace)
        except HeadroomWouldShrink as refused:
            raise OperationRefused(f"{refused}; --replace does it") from None
    if not made.changed:
        cli.tell(f"headroom is kept for {', '.join(levels)} already", levels=list(levels))
        return
    text = f"headroom is kept for any one {' or '.join(levels)} from now on"
    dropped = f", and no more for any one {' or '.join(made.dropped)}" if made.dropped else ""
    cli.tell(f"{text}{dropped}", levels=list(levels), dropped=list(made.dropped))


def _tell_supposed(cli: ActCli, would: SupposedHeadroom) -> None:
    facts = {"levels": list(would.levels), "dropped": list(would.dropped), "slots": would.slots}
    if not would.levels:
        kept = f"{several(would.slots, 'slot')} would be released" if would.dropped else "none is kept"
        cli.tell(f"no headroom would be kept: {kept}", **facts)
        return
    text = f"headroom would be kept for any one {' or '.join(would.levels)}"
    dropped = f", and no more for any one {' or '.join(would.dropped)}" if would.dropped else ""
    cli.tell(f"{text}{dropped}" if would.changed else f"{text}, as it is", **facts)


@commands.command("show")
async def show(cli: Cli) -> int:
    """Show whether all instances of any one failed host or rack fit into the reserved slots.

    The exit code is 1 if they do not fit, with the reasons.
    """
    async with cli.bus("headroom") as bus:
        found = await find_headroom(bus)
    if not found:
        raise OperationRefused("no headroom is kept: `berth host headroom set host` begins")
    for headroom in found:
        levels = " or ".join(headroom.reservation.levels)
        state = "kept" if headroom.kept else "not kept"
        figures = f"{headroom.slots} slots for {headroom.instances} instances in {headroom.domains} domains"
        cli.value(headroom, f"headroom for any one {levels}: {state}; {figures}")
        _reasons(cli, headroom.lacking)
    return 0 if all(headroom.kept for headroom in found) else 1


def _reasons(cli: Cli, lacking: Sequence[str]) -> None:
    if not cli.as_json:
        for reason in lacking:
            cli.line(f"  {reason}")

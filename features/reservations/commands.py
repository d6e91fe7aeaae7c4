"""`berth project reservation`: holds capacity for builds of a project, now or in a window of time."""

from typing import Annotated

from berth.kit import (
    WHEN,
    ActCli,
    Cli,
    Commands,
    ListCli,
    check_host_names,
    described,
    host_names,
    option,
    plain_table,
    positional,
    time_given,
)
from bus.clock import Clock, time_text
from bus.errors import OperationRefused
from bus.masking import printable
from bus.vocabulary import totals
from features.reservations.edits import edit_reservation, find_reservations, reservation_named
from features.reservations.messages import (
    EndReservation,
    ExtendReservation,
    Reservation,
    ReservationEditRequested,
    ReservationsFound,
)
from features.reservations.new_reservations import (
    NewReservation,
    create_reservation,
    filled_text,
    new_reservation,
)

commands = Commands(name="reservation", no_args_is_help=True)

Which = Annotated[str, positional("Its name or uuid.", metavar="RESERVATION")]
Project = Annotated[str, described("The project that owns it (default: as for `berth boot`).")]


_OPTIONS = {
    "vcpus": described("Processors of each slot.", min=0),
    "memory_mb": described("Memory of each slot.", min=0),
    "disk_gb": described("Disk of each slot.", min=0),
    "extra_spec": described("Extra specs of the slots' flavor.", metavar="KEY=VALUE"),
    "count": described("Slots: instances of this size.", min=1),
    "host": described("Only on these hosts.", metavar="HOST"),
    "cell": described("Only in this cell."),
    "zone": described("Only in this zone."),
    "begin": described(f"When builds may draw from it (default: now): {WHEN}", metavar="TIME"),
    "end": described(f"When the rest is released (default: never): {WHEN}", metavar="TIME"),
    "hold_from": described("When its capacity is taken (default: now).", metavar="TIME"),
    "open": described("Builds of the project need not name it."),
    "any_project": described("Builds of every project may name it (instead of --project)."),
    "no_returns": described("Release what ended instances had, instead of reserving it again."),
    "purpose": described("A note, for example why it exists."),
}


@commands.command("create")
async def create_command(
    cli: Cli,
    name: Annotated[str, positional("Unique in its project.")],
    options: Annotated[NewReservation, _OPTIONS],
    project: Project = "",
) -> int:
    """Reserve capacity for a project: one slot for each instance of a size.

    A build draws from the reservation by `berth boot --reservation NAME`, and is then placed in a slot or
    nowhere. The build's claim takes the slot in the same transaction, so two builds never get one slot. If
    --hold-from is later than now, other builds may take the capacity before that time.
    """
    now = Clock().now()
    reservation = new_reservation(name, project, options, now)
    async with cli.bus("reserve") as bus:
        await check_host_names(bus, reservation.hosts)
        filled = await create_reservation(bus, reservation, now)
    cli.value(reservation, f"reservation {name}: {reservation.id}\n  {filled_text(reservation, filled, now)}")
    return 1 if filled.missing else 0


@commands.command("list")
async def list_reservations(
    cli: Annotated[ListCli, "Whole, as JSON lines."], project: str = option("", "Only of this project.")
) -> None:
    """List reservations with their state, and how many of their slots hold capacity that is not drawn."""
    now = Clock().now()
    async with cli.bus("reserve") as bus:
        found = await find_reservations(bus, project)
    rows = [_row(each, found, now) for each in found.reservations]
    titles = ("name", "uuid", "project", "state", "slots", "not drawn", "begins", "ends", "use")
    cli.rows(found.reservations, plain_table(titles, rows) if rows else "no reservations")


@commands.command("show")
async def show(cli: Cli, wanted: Which, project: Project = "") -> None:
    """Show one reservation with the host of each slot, what the slot still holds, and the instances that drew
    from it.
    """
    now = Clock().now()
    async with cli.bus("reserve") as bus:
        found = await reservation_named(bus, wanted, project)
        [reservation] = found.reservations
        slots = found.slots.get(reservation.id, ())
        hosts = await host_names(bus, {root for slot in slots for root in slot.roots})
    if cli.as_json:
        cli.value({"reservation": reservation, "slots": slots, "hosts": hosts}, "")
        return
    purpose = f": {printable(reservation.purpose)}" if reservation.purpose else ""
    cli.line(f"{reservation.name} {reservation.id}{purpose}")
    window = f"from {time_text(reservation.begins)} to {time_text(reservation.ends)}"
    owner = f"project {printable(reservation.project)}" if reservation.project else "any project"
    cli.line(f"  {reservation.state(now)}, {window}; {reservation.use}; {owner}")
    for slot in slots:
        on = ", ".join(printable(hosts.get(root, root)) for root in slot.roots)
        drawn = f", drawn by {', '.join(slot.drawn_by)}" if slot.drawn_by else ""
        cli.line(f"  {on}: {_amounts(slot.held) or 'nothing left'} of {_amounts(slot.allocations)}{drawn}")
    if (missing := reservation.count - len(slots)) > 0:
        cli.line(f"  {missing} of {reservation.count} slots have no host yet")


@commands.command("set")
async def extend(
    cli: ActCli,
    wanted: Which,
    end: str = option("", f"The new end (default: never): {WHEN}", metavar="TIME"),
    project: Project = "",
) -> None:
    """Move the end of a reservation that has not ended; an earlier time shortens it."""
    ends = time_given("--end", end, Clock().now())
    async with cli.bus("reserve") as bus:
        [reservation] = (await reservation_named(bus, wanted, project)).reservations
        edit = ExtendReservation(reservation=reservation.id, ends=ends)
        if cli.dry_run:
            if reservation.state(Clock().now()) == "ended":
                raise OperationRefused(f"reservation {reservation.name} has ended")
            await bus.rehearse(ReservationEditRequested(edit=edit))
        else:
            await edit_reservation(bus, edit)
    does = "would end" if cli.dry_run else "ends"
    cli.tell(f"reservation {reservation.name} {does}: {time_text(ends)}", id=reservation.id, ends=ends)


@commands.command("delete")
async def delete(
    cli: ActCli,
    wanted: Annotated[list[str], positional("Their names or uuids.", metavar="RESERVATION...")],
    project: Project = "",
) -> int:
    """End reservations and delete their records. Instances that drew from them keep running."""
    async with cli.bus("reserve") as bus:

        async def delete_one(name: str) -> None:
            found = await reservation_named(bus, name, project)
            [reservation] = found.reservations
            edit = EndReservation(reservation=reservation.id, forget=True)
            if cli.dry_run:
                await bus.rehearse(ReservationEditRequested(edit=edit))
                count = sum(bool(slot.held) for slot in found.slots.get(reservation.id, ()))
            else:
                count = (await edit_reservation(bus, edit)).released
            released = f"{count} slots {cli.becomes('released')}"
            facts = {"id": reservation.id, "released": count, "gone": True}
            cli.tell(f"reservation {reservation.name} {cli.becomes('deleted')}: {released}", **facts)

        return await cli.each(wanted, delete_one)


def _row(reservation: Reservation, found: ReservationsFound, now: float) -> tuple[object, ...]:
    slots = found.slots.get(reservation.id, ())
    held = sum(bool(slot.held) for slot in slots)
    window = time_text(reservation.begins), time_text(reservation.ends)
    of_all = f"{len(slots)}/{reservation.count}"
    names = reservation.name, reservation.id, reservation.project or "any"
    return (*names, reservation.state(now), of_all, held, *window, reservation.use)


def _amounts(allocations: dict[str, dict[str, int]]) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in sorted(totals(allocations).items()))

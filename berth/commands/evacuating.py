"""`berth evacuate`: a host is down, and all that was there is built again elsewhere."""

import asyncio
from typing import Annotated

import typer
from msgspec import structs
from rich.console import Console

from berth import wiring
from berth.commands.draining import EmptyingPrinter, tell_emptied, tell_what_would_be
from berth.commands.move_output import MovePrinter
from berth.commands.options import Json, StateDir, WaitingCommand
from berth.commands.terminal import complain, effective, run, say, write_json
from berth.operations.boot_options import waiting_time
from berth.operations.cells import check_to_cell
from berth.operations.emptying import Emptying, instances_on
from berth.operations.errors import checked
from berth.operations.host_states import forcing_down, host_named
from berth.operations.moving import ANY
from berth.operations.publishing import PATIENCE, publish
from berth.settings import Settings
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.host_health import FORCED_DOWN
from bus.moves import MoveRequested
from bus.resources import Provider

commands = typer.Typer()


@commands.command("evacuate", cls=WaitingCommand)
def evacuate_command(
    host: Annotated[str, typer.Argument(metavar="HOST", help="Its name, or its root's uuid.")],
    wait: Annotated[
        str | None,
        typer.Option(
            "--wait",
            metavar="[TIME]",
            help="Follow all to their ends; exit 1 unless none stays. With a time (90s, 30m, 12h, 7d) each"
            " may wait so long for room.",
        ),
    ] = None,
    most: Annotated[
        int, typer.Option("--max", min=1, metavar="N", help="With --wait: so many at a time.")
    ] = 50,
    to_cell: Annotated[str, typer.Option("--to-cell", metavar="CELL", help="To hosts of this cell.")] = "",
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what would be done, and what would stay and why; do nothing."),
    ] = False,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Rebuild all instances of a dead host on other hosts.

    Only for a host that is switched off or completely disconnected: it is marked forced down first (as by
    `berth host force-down`), and the memory of its guests is lost. If it returns, its agent destroys guests
    that moved before it reports anything; `berth host force-down HOST --undo` enables it again. Use `berth
    drain` for a running host.
    """
    asked = MoveRequested(move=ANY, build=ANY, kind="evacuate", to_cell=to_cell, wait=waiting_time(wait))
    settings = effective(state_dir=state_dir).settings
    run(evacuate(settings, host, asked, wait is not None, most, dry_run, as_json, say))


async def evacuate(
    settings: Settings,
    name: str,
    asked: MoveRequested,
    wait: bool,
    most: int,
    dry_run: bool,
    as_json: bool,
    say: Console,
) -> int:
    async with Bus(wiring.transport(settings, "evacuate")) as bus:
        await check_to_cell(bus, settings, asked.to_cell)
        host = await host_named(bus, name)
        if dry_run:
            # Before the host is forced down only another kind of move can be asked about; hosts are the same.
            fenced = FORCED_DOWN in host.traits
            supposed = structs.replace(asked, kind="evacuate" if fenced else "migrate")
            telling = MovePrinter(as_json, say)
            return await tell_what_would_be(bus, [host], supposed, telling, "forced down")
        there = await instances_on(bus, [host])
        called = host.host or host.name
        active = [instance for instance in there if instance.status == "active"]
        if not as_json:
            rest = len(there) - len(active)
            others = f"; its cell sees to the {rest} that are not active" if rest else ""
            say.print(f"{called}: forced down; {len(active)} go to other hosts{others}", markup=False)
        await forcing_down(True)(bus, host)
        if wait:
            return await _follow(bus, host, asked, most, EmptyingPrinter(as_json, say))
        clock = Clock()
        requests = [
            checked(structs.replace(asked, move=clock.uuid(), build=instance.build, cell=instance.cell))
            for instance in active
        ]
        if requests:
            await publish(bus, *requests, patience=PATIENCE)
    if as_json:
        for request in requests:
            write_json({"move": request.move, "build": request.build, "kind": request.kind})
    elif requests:
        say.print(f"asked for: `berth moves list --host {called}` shows how they go", markup=False)
    return 0


async def _follow(bus: Bus, host: Provider, asked: MoveRequested, most: int, telling: EmptyingPrinter) -> int:
    called = host.host or host.name
    emptying = Emptying(bus, [host], asked, most, telling, patient=False)
    try:
        with telling.bar:
            far = await emptying.run()
        return tell_emptied(far, called, telling)
    except asyncio.CancelledError:
        complain.print(
            f"{called}: {emptying.so_far.sentence()}. What is under way ends by itself;"
            f" `berth evacuate {called} --wait` goes on with the rest",
            markup=False,
        )
        raise

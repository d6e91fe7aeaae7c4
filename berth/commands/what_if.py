"""`berth what-if`: would this fit, where, how many more, and what would change it. Nothing is claimed."""

import dataclasses
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from berth import wiring
from berth.commands.builds import BOOT_OPTIONS, tell_notes
from berth.commands.funnel import print_funnel
from berth.commands.options import Json, StateDir, expanded
from berth.commands.planning import flavor_as_planned, plan_room
from berth.commands.terminal import effective, run, say, write_json
from berth.operations.boot_options import BootOptions, boot_request, names_of
from berth.operations.errors import checked
from berth.operations.names import ByName, resolved
from berth.settings import Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.masking import printable
from bus.messages import BuildRequested
from bus.queries import WhatIf, WhatIfAnswered

SECONDS = 30.0  # an answer may take

commands = typer.Typer()

_ASKED = {name: option for name, option in BOOT_OPTIONS.items() if name not in ("count", "name")}

Count = Annotated[
    int, typer.Option(min=1, max=10_000, help="Instances, all or none; a boot has at most 1000.")
]
Best = Annotated[int, typer.Option(min=1, max=64, help="So many of the best hosts are named.")]
Room = Annotated[bool, typer.Option("--room/--no-room", help="Count how many more there is room for.")]

_PLAN = "Capacity, in thought"
Mix = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[Nx]CLASS:AMOUNT,...",
        help="A flavor of a mix, N of it in each: 3xVCPU:2,MEMORY_MB:4096,TRAIT,!TRAIT; may be repeated.",
        rich_help_panel=_PLAN,
    ),
]
AddHosts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NxSHAPE",
        help="So many hosts more: 10xlike:HOST, or 10xCLASS:AMOUNT,...,TRAIT,zone=NAME; may be repeated.",
        rich_help_panel=_PLAN,
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST", help="As if it were gone: name, c1-h*, or id; may be repeated.", rich_help_panel=_PLAN
    ),
]


@commands.command("what-if")
@expanded
def what_if_command(
    options: Annotated[BootOptions, _ASKED],
    count: Count = 1,
    best: Best = 8,
    room: Room = True,
    mix: Mix = None,
    add_hosts: AddHosts = None,
    without: Without = None,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Would this fit now, where, how many more, and what would change it. Nothing is claimed.

    Takes what `berth boot` takes: `berth what-if --vcpus 4 --memory-mb 8192 --zone z2 --count 10`.
    With --mix, --add-hosts or --without it plans instead: how many fit, were hosts added or taken away.
    """
    options = dataclasses.replace(options, count=min(count, 1000))
    request = boot_request(options)
    settings = effective(state_dir=state_dir).settings
    if mix or add_hosts or without:
        flavors = mix or [flavor_as_planned(request.flavor)]
        place = request.zone, request.cell
        run(plan_room(settings, flavors, add_hosts or [], without or [], *place, as_json, say))
        return
    tell_notes(request)
    run(what_if(settings, request, names_of(options), best, room, as_json, say, count))


async def what_if(
    settings: Settings,
    request: BuildRequested,
    names: ByName,
    best: int,
    room: bool,
    as_json: bool,
    say: Console,
    count: int = 0,
) -> int:
    async with Bus(wiring.transport(settings, "what-if")) as bus:
        request = checked(await resolved(bus, request, names))
        ask = bus.asker(topics.WHAT_IF, timeout=SECONDS)
        answer = await ask(WhatIf(request=request, best=best, room=room, count=count))
    if as_json:
        write_json(answer)
    else:
        show_answer(answer, say)
    return 0 if answer.fits else 1


def show_answer(answer: WhatIfAnswered, say: Console) -> None:
    """Print the answer; return 0 if the request fits."""
    if answer.refusal:
        say.print(Text(f"it cannot be meant: {printable(answer.refusal)}", style="red"))
        return
    several = sum(there.instances for there in answer.placed)
    if answer.fits:
        as_flavor = f", as flavor {answer.flavor} of --or-else" if answer.flavor else ""
        say.print(Text(f"it fits: {several} instance{'' if several == 1 else 's'}{as_flavor}", style="green"))
    else:
        say.print(Text(f"it does not fit [{answer.decision.code}]", style="red"))
    if several > 1:
        for there in answer.placed:
            zone = f", zone {printable(there.zone)}" if there.zone else ""
            say.print(Text(f"  {there.instances:>5} on {printable(there.host)} (cell {there.cell}{zone})"))
    chosen = answer.placed[0].root if answer.placed else ""
    print_funnel(answer.decision, say, chosen)
    if answer.room:
        _show_room(answer, say)
    if answer.cut:
        say.print(Text(f"  {printable(answer.cut)}", style="yellow"))


def _show_room(answer: WhatIfAnswered, say: Console) -> None:
    total, hosts = sum(left.instances for left in answer.room), sum(left.hosts for left in answer.room)
    say.print(Text(f"  room for {total} more, on {hosts} host{'' if hosts == 1 else 's'}", style="bold"))
    for left in answer.room:
        where = f"cell {left.cell}" + (f", zone {printable(left.zone)}" if left.zone else "")
        say.print(Text(f"    {where:<30}{left.instances:>9} on {left.hosts}"))

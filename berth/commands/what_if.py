"""`berth what-if`: would this fit, where, how many more, and what would change it. Nothing is claimed."""

import inspect
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from berth import wiring
from berth.commands.builds import boot_command, request_given, tell_notes
from berth.commands.name_resolution import ByName, resolved
from berth.commands.options import Json, StateDir
from berth.commands.planning import flavor_as_planned, plan_room
from berth.commands.terminal import checked, effective, printable, run, say, write_json
from berth.funnel import funnel
from berth.settings import Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.messages import BuildRequested
from bus.queries import WhatIf, WhatIfAnswered

SECONDS = 30.0  # an answer may take

commands = typer.Typer()

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


def what_if_command(
    *,
    count: Count = 1,
    best: Best = 8,
    room: Room = True,
    mix: Mix = None,
    add_hosts: AddHosts = None,
    without: Without = None,
    as_json: Json = False,
    state_dir: StateDir = None,
    **asked: Any,
) -> None:
    """Would this fit now, where, how many more, and what would change it. Nothing is claimed.

    Takes what `berth boot` takes: `berth what-if --vcpus 4 --memory-mb 8192 --zone z2 --count 10`.
    With --mix, --add-hosts or --without it plans instead: how many fit, were hosts added or taken away.
    """
    request, names = request_given(count=min(count, 1000), **asked)
    settings = effective(state_dir=state_dir).settings
    if mix or add_hosts or without:
        flavors = mix or [flavor_as_planned(request.flavor)]
        place = request.zone, request.cell
        run(plan_room(settings, flavors, add_hosts or [], without or [], *place, as_json, say))
        return
    tell_notes(request)
    run(what_if(settings, request, names, best, room, as_json, say, count))


def _as_boot_takes() -> inspect.Signature:
    """Return the signature: options of `berth boot` that describe the request, then those of what-if."""
    asked = inspect.signature(request_given).parameters
    own = inspect.signature(what_if_command).parameters.values()
    mine = [parameter for parameter in own if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    others = asked.keys() - {parameter.name for parameter in mine}
    of_boot = [
        parameter
        for parameter in inspect.signature(boot_command).parameters.values()
        if parameter.name in others
    ]
    return inspect.Signature(
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*of_boot, *mine)]
    )


what_if_command.__signature__ = _as_boot_takes()  # type: ignore[attr-defined]
what_if_command.__annotations__ = boot_command.__annotations__ | what_if_command.__annotations__
commands.command("what-if")(what_if_command)


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
    """0 when it fits."""
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
    for line in funnel(answer.decision, say.width, chosen):
        line.rstrip()
        say.print(line)
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

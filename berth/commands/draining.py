"""`berth drain`: moves all instances away from hosts before maintenance."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer
from msgspec import structs
from rich.console import Console

from berth import wiring
from berth.commands.asking_cells import check_to_cell, chosen_cells
from berth.commands.boot_options import waiting_time
from berth.commands.emptying import Emptying, instances_on, tell_emptied
from berth.commands.host_states import checked_cause, disabling, host_named, reported_hosts
from berth.commands.hosts import Names
from berth.commands.leftover_consumers import tell_left_over
from berth.commands.move_output import MovePrinter
from berth.commands.options import Json, StateDir
from berth.commands.requesting_moves import ANY
from berth.commands.supposing_moves import AT_ONCE, supposed, tell_why_they_stay, why_not
from berth.commands.terminal import CommandRefused, checked, complain, effective, run, say, write_json
from berth.settings import BadSetting, Settings
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.moves import MoveKind, MoveRequested
from bus.resources import Provider

commands = typer.Typer()


@commands.command("drain")
def drain_command(
    hosts: Names = None,
    cell: Annotated[str, typer.Option(help="All hosts of this cell.")] = "",
    agent: Annotated[str, typer.Option(help="All hosts of this agent.")] = "",
    to_cell: Annotated[
        str, typer.Option("--to-cell", metavar="CELL", help="Into this cell: they are stopped first.")
    ] = "",
    live: Annotated[
        bool, typer.Option("--live/--cold", help="They run on while they are copied; or are stopped first.")
    ] = True,
    most: Annotated[int, typer.Option("--max", min=1, metavar="N", help="So many at a time.")] = 10,
    wait: Annotated[
        str, typer.Option(metavar="TIME", help="Each may wait so long for room: 90s, 30m, 12h.")
    ] = "",
    because: Annotated[
        str, typer.Option(metavar="WORD", help="Why they are closed, as `berth host disable --because`.")
    ] = "drain",
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what would be done, and what would stay and why; do nothing."),
    ] = False,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Empty hosts: disable them, and move their instances to other hosts, a limited number at a time.

    Exit 0 if no instance stays, else 1, with a reason for each. Ctrl-C stops it: moves in progress end by
    themselves, the hosts stay disabled, and the same command continues. Afterwards `berth host enable HOST
    --because drain` enables one again. Use `berth evacuate` for a dead host. `berth drain h1 h2 --max 4
    --dry-run`.
    """
    if sum(map(bool, (hosts, cell, agent))) != 1:
        raise BadSetting("say which: names of hosts, or --agent, or --cell")
    settings = effective(state_dir=state_dir).settings
    if to_cell and to_cell == cell:
        raise BadSetting(f"--to-cell {to_cell}: that is the cell that is emptied")
    kind: MoveKind = "live" if live and not to_cell else "migrate"
    asked = MoveRequested(move=ANY, build=ANY, kind=kind, to_cell=to_cell, wait=waiting_time(wait))
    run(drain(settings, hosts or (), cell, agent, asked, most, checked_cause(because), dry_run, as_json, say))


async def drain(
    settings: Settings,
    names: Sequence[str],
    cell: str,
    agent: str,
    asked: MoveRequested,
    most: int,
    because: str,
    dry_run: bool,
    as_json: bool,
    say: Console,
) -> int:
    telling = MovePrinter(as_json, say)
    async with Bus(wiring.transport(settings, "drain")) as bus:
        await check_to_cell(bus, settings, asked.to_cell)
        hosts = await _hosts(bus, settings, names, cell, agent)
        if dry_run:
            return await tell_what_would_be(bus, hosts, asked, telling, "disabled")
        for host in hosts:
            state = await disabling(because)(bus, host)
            if not as_json:
                say.print(f"{host.host or host.name}: {state}", markup=False)
        emptying = Emptying(bus, hosts, asked, most, telling, because=because)
        try:
            far = await emptying.run()
        except asyncio.CancelledError:
            complain.print(
                f"stopped: {emptying.so_far.sentence()}. What is under way ends by itself;"
                " the same command goes on with the rest",
                markup=False,
            )
            raise
        code = tell_emptied(far, _called(hosts), telling)
        await tell_left_over(bus, hosts, far.stay, telling)
    return code


async def _hosts(bus: Bus, settings: Settings, names: Sequence[str], cell: str, agent: str) -> list[Provider]:
    if names:
        found = {host.id: host for host in [await host_named(bus, name) for name in names]}
        return list(found.values())
    if cell:
        await chosen_cells(bus, settings, [cell])
    hosts = [host async for host in reported_hosts(bus, agent) if not cell or host.cell == cell]
    if not hosts:
        raise CommandRefused(
            f"no host is reported {f'by an agent {agent!r}' if agent else f'in cell {cell}'}"
        )
    return sorted(hosts, key=lambda host: host.host)


def _called(hosts: Sequence[Provider]) -> str:
    return hosts[0].host or hosts[0].name if len(hosts) == 1 else f"{len(hosts)} hosts"


async def tell_what_would_be(
    bus: Bus, hosts: Sequence[Provider], asked: MoveRequested, telling: MovePrinter, state: str
) -> int:
    """Print what `asked` would do on hosts made `state`; return 1 if instances would stay."""
    there = {host.id: await instances_on(bus, [host]) for host in hosts}
    moving = [instance for host in hosts for instance in there[host.id] if instance.status == "active"]
    clock = Clock()
    moves = [
        checked(structs.replace(asked, move=clock.uuid(), build=instance.build, cell=instance.cell))
        for instance in moving
    ]
    answers = dict(
        zip((instance.build for instance in moving), await supposed(bus, moves, hosts), strict=True)
    )
    for host in hosts:
        count = Counter(instance.status for instance in there[host.id])
        stay = [
            instance.build
            for instance in there[host.id]
            if instance.build in answers and not answers[instance.build].fits
        ]
        called = host.host or host.name
        if telling.as_json:
            whys = {build: why_not(answers[build]) for build in stay}
            write_json({"host": called, "instances": dict(count), "stay": whys})
            continue
        active = count.pop("active", 0)
        others = ", ".join(f"{several} {status}" for status, several in sorted(count.items()))
        rest = f"; waited for: {others}" if others else ""
        finds = f", of which {len(stay)} find no host now" if stay else ""
        telling.say.print(
            f"{called}: would be {state}, and {active} instances moved{finds}{rest}", markup=False
        )
    bad = [(build, answer) for build, answer in answers.items() if not answer.fits]
    if not telling.as_json:
        tell_why_they_stay(bad, telling.say)
        if len(moves) > AT_ONCE:
            telling.say.print(
                f"looked at {AT_ONCE} at a time: of room it is not known who takes it", style="dim"
            )
    return 1 if bad else 0

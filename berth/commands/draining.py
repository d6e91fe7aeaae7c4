"""`berth drain`: hosts are to be worked on, and all that runs there goes to others first."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from berth import wiring
from berth.commands.asking_cells import chosen_cells
from berth.commands.emptying import Emptying, instances_on, tell_emptied
from berth.commands.hosts import Names
from berth.commands.left_over import tell_left_over
from berth.commands.marking import checked_cause, disabling, host_named, reported_hosts
from berth.commands.options import Json, StateDir
from berth.commands.requesting_moves import ANY
from berth.commands.terminal import CommandRefused, complain, effective, run, say, write_json
from berth.commands.told_moves import ToldMoves
from berth.settings import BadSetting, Settings
from bus.delivery.runner import Bus
from bus.moves import MoveRequested
from bus.resources import Provider

commands = typer.Typer()


@commands.command("drain", rich_help_panel="Moves")
def drain_command(
    hosts: Names = None,
    cell: Annotated[
        str, typer.Option(help="All hosts of this cell. (Instances move within their cell as yet.)")
    ] = "",
    agent: Annotated[str, typer.Option(help="All hosts of this agent.")] = "",
    live: Annotated[
        bool, typer.Option("--live/--cold", help="They run on while they are copied; or are stopped first.")
    ] = True,
    most: Annotated[int, typer.Option("--max", min=1, metavar="N", help="So many at a time.")] = 10,
    because: Annotated[
        str, typer.Option(metavar="WORD", help="Why they are closed, as `berth host disable --because`.")
    ] = "drain",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what is there and what would be done, and do nothing.")
    ] = False,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Empty hosts: close them to new instances, and move all they have to others, so many at a time.

    Exit 0 when nothing stays, else 1, and each that stays is named with why. Ctrl-C stops it: what is under
    way ends by itself, the hosts stay closed, and the same command goes on where it was. Afterwards
    `berth host enable HOST --because drain` opens one again. A dead host is emptied by `berth evacuate`.
    `berth drain h1 h2 --max 4 --dry-run`.
    """
    if sum(map(bool, (hosts, cell, agent))) != 1:
        raise BadSetting("say which: names of hosts, or --agent, or --cell")
    settings = effective(state_dir=state_dir).settings
    asked = MoveRequested(move=ANY, build=ANY, kind="live" if live else "migrate")
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
    telling = ToldMoves(as_json, say)
    async with Bus(wiring.transport(settings, "drain")) as bus:
        hosts = await _hosts(bus, settings, names, cell, agent)
        if dry_run:
            return await _say_what_is_there(bus, hosts, telling)
        for host in hosts:
            state = await disabling(because)(bus, host)
            if not as_json:
                say.print(f"{host.host or host.name}: {state}", markup=False)
        emptying = Emptying(bus, hosts, asked, most, telling)
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


async def _say_what_is_there(bus: Bus, hosts: Sequence[Provider], telling: ToldMoves) -> int:
    for host in hosts:
        there = Counter(one.status for one in await instances_on(bus, [host]))
        called = host.host or host.name
        if telling.as_json:
            write_json({"host": called, "instances": dict(there)})
            continue
        moves = there.pop("active", 0)
        others = ", ".join(f"{count} {status}" for status, count in sorted(there.items()))
        rest = f"; waited for: {others}" if others else ""
        telling.say.print(f"{called}: would be disabled, and {moves} instances moved{rest}", markup=False)
    return 0

"""`berth host drain` empties hosts for maintenance; `berth host evacuate` rebuilds instances of a failed
host.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import structs

from berth.kit import (
    ActCli,
    BadSetting,
    Cli,
    Commands,
    HostNames,
    Marking,
    Settings,
    WaitingCommand,
    check_to_cell,
    checked_cause,
    chosen_cells,
    complain,
    disabling,
    forcing_down,
    host_named,
    option,
    parts_given,
    positional,
    print_funnel,
    progress_bar,
    reported_hosts,
    waiting_time,
    write_json,
)
from bus.delivery.recording import RecordingBus
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.host_health import FORCED_DOWN
from bus.masking import printable
from bus.parts import MoveParts
from bus.resources import Consumer, Provider
from features.moves.commands.moves import PlanPrinter
from features.moves.messages import (
    MoveKind,
    MoveOfPlan,
    MoveRequested,
    PlanOfMoves,
    PlanStands,
    SupposedDestination,
)
from features.moves.moving import ANY
from features.moves.plan_requests import (
    FollowedPlan,
    emptying_plan,
    instances_on,
    plan_sentence,
    rehearse_plan,
    remaining_consumers,
    start_plan,
    suppose_emptying,
)
from features.moves.supposed_moves import AT_ONCE

_SHOWN = 20  # instances or consumers that are listed

commands = Commands()


@dataclass(frozen=True)
class DrainOptions:
    hosts: HostNames = None
    cell: str = option("", "All hosts of this cell.")
    agent: str = option("", "All hosts of this agent.")
    to_cell: str = option("", "Into this cell: they are stopped first.", metavar="CELL")
    live: bool = option(True, "They run on while they are copied; or are stopped first.", "--live/--cold")
    most: int = option(10, "So many at a time.", "--max", min=1, metavar="N")
    wait: str = option("", "Each may wait so long for room: 90s, 30m, 12h.", metavar="TIME")
    because: str = option("drain", "Why they are closed, as `berth host disable --because`.", metavar="WORD")


@commands.command("drain")
async def drain_command(cli: ActCli, options: DrainOptions) -> int:
    """Empty hosts: disable them, and move their instances to other hosts of the cell, some at a time.

    Schedulers carry the drain out, also if this command is killed. Exit 0 if no instance stays, else 1, with
    the reason for each. Ctrl-C stops the drain: moves in progress complete, the hosts stay disabled, and the
    same command resumes it. Afterwards `berth host enable HOST
    --because drain` enables a host. Use `berth host evacuate` for a dead host. Example: `berth host drain h1
    h2 --max 4 --dry-run`.
    """
    if sum(map(bool, (options.hosts, options.cell, options.agent))) != 1:
        raise BadSetting("name the hosts, or give --agent or --cell")
    if options.to_cell and options.to_cell == options.cell:
        raise BadSetting(f"--to-cell {options.to_cell}: that is the cell to be drained")
    kind: MoveKind = "live" if options.live and not options.to_cell else "migrate"
    asked = MoveRequested(
        move=ANY, build=ANY, kind=kind, to_cell=options.to_cell, parts=waiting_for(options.wait)
    )
    because = checked_cause(options.because)
    printer = EmptyingPrinter(cli, kind)
    async with cli.bus("drain") as bus:
        await check_to_cell(bus, cli.settings, asked.to_cell)
        hosts = await _hosts(bus, cli.settings, options)
        plan = emptying_plan(
            hosts, kind, options.most, to_cell=asked.to_cell, parts=asked.parts, because=because
        )
        if cli.dry_run:
            await _rehearse(bus, hosts, disabling(because), plan)
            return await print_plan(bus, hosts, asked, cli, "disabled")
        for host in hosts:
            marked = await disabling(because)(bus, host)
            if not cli.as_json:
                cli.line(f"{host.host or host.name}: {marked.says}")
        if not cli.as_json:
            which = hosts[0].host or hosts[0].name if len(hosts) == 1 else "HOST"
            undone = f"berth host enable {which}{because and f' --because {because}'}"
            cli.line(f"undone by `{printable(undone)}`", "dim")
        followed = await start_plan(bus, plan, printer)
        try:
            far = await printer.followed(followed)
        except asyncio.CancelledError:
            await asyncio.shield(followed.stop())
            way = "Moves in progress end by themselves; the same command goes on with the rest"
            complain.print(f"stopped: {printer.sentence}. {way}", markup=False)
            raise
        code = _print_end(printer, followed, hosts, far)
        await print_remaining(bus, hosts, far.stay, cli)
    return code


def _print_end(
    printer: "EmptyingPrinter", followed: FollowedPlan, hosts: Sequence[Provider], far: PlanStands
) -> int:
    """Print the result of a drain or evacuation; return 1 if instances stay, else 0."""
    called = hosts[0].host or hosts[0].name if len(hosts) == 1 else f"{len(hosts)} hosts"
    if printer.cli.as_json:
        moved = [build for build, move in followed.moved.items() if move.result == "done"]
        ends = {"moved": sorted({*moved} - far.stay.keys()), "gone": far.gone, "stay": far.stay}
        write_json({"hosts": called, "plan": followed.id, **ends})
        return 1 if far.stay else 0
    printer.cli.line(f"{called}: {plan_sentence(far)}")
    for build, why in sorted(far.stay.items())[:_SHOWN]:
        printer.cli.line(f"  {build} stays: {printable(why)}")
    if len(far.stay) > _SHOWN:
        printer.cli.line(f"  ... and {len(far.stay) - _SHOWN} more: --json lists all", "dim")
    return 1 if far.stay else 0


async def _hosts(bus: Bus, settings: Settings, options: DrainOptions) -> list[Provider]:
    cell, agent = options.cell, options.agent
    if options.hosts:
        found = {host.id: host for host in [await host_named(bus, name) for name in options.hosts]}
        return list(found.values())
    if cell:
        await chosen_cells(bus, settings, [cell])
    hosts = [host async for host in reported_hosts(bus, agent) if not cell or host.cell == cell]
    if not hosts:
        raise OperationRefused(f"no host is reported {f'by agent {agent!r}' if agent else f'in cell {cell}'}")
    return sorted(hosts, key=lambda host: host.host)


class EmptyingPrinter(PlanPrinter):
    """Prints the progress of a drain: each move; in a terminal only failed moves and a progress bar."""

    def __init__(self, cli: Cli, kind: MoveKind) -> None:
        super().__init__(cli, kind)
        self.sentence = "nothing has begun"
        self._bar = progress_bar(not cli.as_json)
        self._task = self._bar.add_task("moved", total=None)
        self._why = ""

    async def followed(self, plan: FollowedPlan) -> PlanStands:
        """Print the progress of a plan until it ends."""
        with self._bar:
            return await plan.ended()

    def so_far(self, stands: PlanStands) -> None:
        """Print the progress of a plan; its reason to pause is printed once."""
        self.sentence = plan_sentence(stands)
        done = stands.moved + stands.gone + len(stands.stay)
        self._bar.update(self._task, completed=done, total=stands.total, description=self.sentence)
        if stands.why not in ("", self._why) and not (stands.ended or self.cli.as_json):
            self.cli.line(f"waits: {printable(stands.why)}", "red")
        self._why = stands.why

    def on_move(self, move: MoveOfPlan) -> None:
        if self.cli.as_json or move.result != "done" or not complain.is_terminal:
            super().on_move(move)


async def print_remaining(bus: Bus, hosts: Sequence[Provider], reported: Collection[str], cli: Cli) -> None:
    """Print the consumers that still have allocations on drained hosts, except the ids in `reported`."""
    for host in hosts:
        left, called = await remaining_consumers(bus, host, reported), host.host or host.name
        if cli.as_json:
            for consumer in left:
                write_json(
                    {"host": called, "consumer": consumer.id, "type": consumer.type, "is": _is(consumer)}
                )
            continue
        for consumer in left[:_SHOWN]:
            cli.line(f"  {printable(called)}: {consumer.id} {_is(consumer)}", "dim")
        if len(left) > _SHOWN:
            cli.line(f"  {printable(called)}: ... and {len(left) - _SHOWN} more", "dim")


_IS = {
    "CLEANUP": "holds resources of a guest until its agent reports that it is destroyed",
    "MIGRATION": "holds the former host of a moving instance until the move ends",
    "INSTANCE": "holds resources there, and is no instance that its cell would move",
}


def _is(holder: Consumer) -> str:
    other = f"holds resources there, and is no consumer of berth ({holder.type or 'unknown'})"
    return _IS.get(holder.type or "", other)


async def _rehearse(
    bus: RecordingBus, hosts: Sequence[Provider], marking: Marking, plan: PlanOfMoves
) -> None:
    """Raise OperationRefused if the operator may not close one of the hosts, or not start the plan."""
    for host in hosts:
        await marking.rehearsed(bus, host)
    await rehearse_plan(bus, plan)


async def print_plan(bus: Bus, hosts: Sequence[Provider], asked: MoveRequested, cli: Cli, state: str) -> int:
    """Print what a drain would do with each instance, without moving any; return 1 if instances would stay,
    else 0. `asked`: the move to evaluate for each instance; `state`: the state that the hosts would get, such
    as "disabled".
    """
    found = await suppose_emptying(bus, hosts, asked)
    for drain in found:
        called, count = drain.host.host or drain.host.name, drain.statuses
        moved = {one.build: printable(one.host) for one in drain.instances if not one.why}
        whys = {one.build: printable(one.why) for one in drain.instances if one.why}
        further = ", ".join(f"{n} {status}" for status, n in sorted(count.items()) if status != "active")
        rest = f"; waited for: {further}" if further else ""
        finds = f", of which {len(whys)} find no host now" if whys else ""
        sentence = f"{called}: would be {state}, and {count['active']} instances moved{finds}{rest}"
        cli.tell(sentence, host=called, instances=dict(count), moves=moved, stay=whys)
    every = [one for drain in found for one in drain.instances]
    if not cli.as_json:
        print_destinations(every, cli)
        if sum(drain.statuses["active"] for drain in found) > AT_ONCE:
            cli.line(
                f"evaluated {AT_ONCE} at a time: free capacity may be counted for several of them", "dim"
            )
    return 1 if any(one.why for one in every) else 0


@dataclass(frozen=True)
class EvacuateOptions:
    hosts: Annotated[list[str], positional("Names, or uuids of their roots.", metavar="HOST...")]
    wait: str | None = option(
        None,
        "Follow all moves to their ends; exit 1 if an instance stays. With a time (90s, 30m, 12h, 7d)"
        " each move may wait that long for capacity.",
        metavar="[TIME]",
    )
    most: int = option(50, "So many at a time.", "--max", min=1, metavar="N")
    to_cell: str = option("", "To hosts of this cell.", metavar="CELL")


@commands.command("evacuate", cls=WaitingCommand)
async def evacuate_command(cli: ActCli, options: EvacuateOptions) -> int:
    """Rebuild all instances of dead hosts on other hosts.

    Use it only for hosts that are switched off or completely disconnected: the command first marks them as
    forced down (like `berth host force-down`), and the memory of its guests is lost. If the host returns, its
    agent destroys the guests that were moved; `berth host force-down HOST --undo` enables it again. Use
    `berth host drain` for a running host.
    """
    asked = MoveRequested(
        move=ANY, build=ANY, kind="evacuate", to_cell=options.to_cell, parts=waiting_for(options.wait)
    )
    async with cli.bus("evacuate") as bus:
        await check_to_cell(bus, cli.settings, asked.to_cell)
        hosts: dict[str, Provider] = {}

        async def find_host(name: str) -> None:
            host = await host_named(bus, name)
            hosts[host.id] = host

        code = await cli.each(options.hosts, find_host)
        if not hosts:
            return code
        found = [*hosts.values()]
        plan = emptying_plan(
            found, "evacuate", options.most, to_cell=asked.to_cell, parts=asked.parts, patient=False
        )
        if cli.dry_run:
            await _rehearse(bus, found, forcing_down(True), plan)
            return await _print_evacuations(bus, found, asked, cli) or code
        return await _evacuate(bus, found, plan, cli, waits=options.wait is not None) or code


async def _print_evacuations(bus: Bus, hosts: Sequence[Provider], asked: MoveRequested, cli: Cli) -> int:
    """Print where the instances of dead hosts would go; return 1 if one would stay.

    An evacuation is refused until the host is forced down. A migration has the same destinations.
    """
    code = 0
    for fenced in (True, False):
        alike = [host for host in hosts if (FORCED_DOWN in host.traits) == fenced]
        supposed = structs.replace(asked, kind="evacuate" if fenced else "migrate")
        if alike:
            code |= await print_plan(bus, alike, supposed, cli, "forced down")
    return code


async def _evacuate(bus: Bus, hosts: Sequence[Provider], plan: PlanOfMoves, cli: Cli, *, waits: bool) -> int:
    """Force hosts down, and let schedulers rebuild their instances; if the command `waits`, follow that."""
    for host in hosts:
        instances = await instances_on(bus, [host])
        active = sum(instance.status == "active" for instance in instances)
        if not cli.as_json:
            rest = len(instances) - active
            further = f"; its cell sees to the {rest} that are not active" if rest else ""
            cli.line(f"{host.host or host.name}: forced down; {active} move to other hosts{further}")
        await forcing_down(True)(bus, host)
    printer = EmptyingPrinter(cli, "evacuate")
    followed = await start_plan(bus, plan, printer)
    names = [host.host or host.name for host in hosts]
    if waits:
        try:
            far = await printer.followed(followed)
        except asyncio.CancelledError:
            way = f"Schedulers go on; `berth host evacuate {' '.join(names)} --wait` follows them"
            complain.print(f"{', '.join(names)}: {printer.sentence}. {way}", markup=False)
            raise
        return _print_end(printer, followed, hosts, far)
    lists = " and ".join(f"`berth move list --host {name}`" for name in names)
    shows = "shows how they go" if len(names) == 1 else "show how they go"
    which = {"host": names[0]} if len(names) == 1 else {"hosts": names}
    cli.tell(f"asked for: {lists} {shows}", **which, plan=followed.id)
    return 0


def waiting_for(given: str | None) -> MoveParts:
    """Return the parts of a move that waits for capacity for the time of the option --wait."""
    return MoveParts(*parts_given(MoveParts, wait=waiting_time(given)))


def print_destinations(instances: Sequence[SupposedDestination], cli: Cli) -> None:
    """Print where each instance would move, and then those that would stay, grouped by reason, with the
    decision about the first one of each group.
    """
    moved = [one for one in instances if not one.why]
    for one in moved[:_SHOWN]:
        cli.line(f"  {one.build} → {printable(one.host)}")
    if len(moved) > _SHOWN:
        cli.line(f"  ... and {len(moved) - _SHOWN} more: --json lists all", "dim")
    alike: dict[tuple[str, object], list[SupposedDestination]] = {}
    for one in instances:
        if one.why:
            removals = one.decision.removals if one.decision else ()
            alike.setdefault((printable(one.why), removals), []).append(one)
    for (why, _), group in alike.items():
        more = f" and {len(group) - _SHOWN} more" if len(group) > _SHOWN else ""
        cli.line(f"  would stay: {why}", "red")
        cli.line(f"    {', '.join(one.build for one in group[:_SHOWN])}{more}")
        if (decision := group[0].decision) is not None:
            print_funnel(decision, cli.say)

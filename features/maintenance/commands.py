"""`berth host maintenance`: windows for which hosts are drained, and automatic evacuations of dead hosts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from berth.kit import (
    WHEN,
    ActCli,
    BadSetting,
    Cli,
    Commands,
    HostNames,
    ListCli,
    checked,
    described,
    option,
    plain_table,
    positional,
)
from bus.clock import time_text
from bus.errors import OperationRefused
from bus.masking import printable
from control_room.kit import several
from features.maintenance.core.maintenance import OVER
from features.maintenance.core.window_form import WindowOptions
from features.maintenance.messages import (
    AddWindow,
    CancelWindow,
    FinishHosts,
    HostEvacuation,
    MaintenanceEditRequested,
    MaintenanceFound,
    MaintenanceWindow,
    ReleaseEvacuations,
    WindowPlan,
    WindowState,
)
from features.maintenance.operations import (
    add_window,
    change_window,
    edit_maintenance,
    find_maintenance,
    hosts_given,
    plan_change,
    plan_sentences,
    plan_window,
    window_given,
    window_text,
)
from features.moves.commands.draining import print_destinations

commands = Commands(name="maintenance", no_args_is_help=True)

Which = Annotated[str, positional("Its id, or how the id begins.", metavar="ID")]

_SHORT = 8  # characters of an id in a list


_CHANGED = {
    "begin": described(f"When the hosts must be empty: {WHEN}", "--from", metavar="TIME"),
    "end": described(f"When the hosts are opened: {WHEN}", "--until", metavar="TIME"),
    "duration": described("In place of --until: how long, such as 2h.", "--for", metavar="DURATION"),
    "budget": described("So many hosts of a rack may be closed or down at a time.", min=0),
    "per": described("The level of labels that --budget counts.", metavar="LEVEL"),
    "most": described("So many moves at a time.", "--max", min=1, metavar="N"),
    "live": described("Instances run on while they move; or are stopped.", "--live/--cold"),
    "keep_closed": described("Do not open the hosts at the end.", "--keep-closed/--open"),
    "reason": described("A note, for example what is done."),
}


@dataclass(frozen=True)
class AddedOptions:
    hosts: HostNames = None
    label: Sequence[str] = option((), "All hosts with this label.", metavar="LEVEL=NAME")
    begin: str = option("", f"When the hosts must be empty: {WHEN}", "--from", metavar="TIME")
    end: str = option("", f"When the hosts are opened: {WHEN}", "--until", metavar="TIME")
    duration: str = option("", "In place of --until: how long, such as 2h.", "--for", metavar="DURATION")
    budget: int = option(0, "So many hosts of a rack may be closed or down at a time (0: all).", min=0)
    per: str = option("rack", "The level of labels that --budget counts.", metavar="LEVEL")
    most: int = option(4, "So many moves at a time.", "--max", min=1, metavar="N")
    live: bool = option(True, "Instances run on while they move; or are stopped first.", "--live/--cold")
    keep_closed: bool = option(False, "Do not open the hosts at the end.")
    reason: str = option("", "A note, for example what is done.")


@commands.command("create")
async def add(cli: ActCli, options: AddedOptions) -> int:
    """Drain hosts for a window of time: in time before it begins, and open them when it ends.

    When the drain begins depends on the instances and on how long earlier moves took. With --budget 2 at most
    two hosts of each rack are closed or down at a time: `berth host maintenance finish HOST` opens a host,
    and then the next one is drained. With --dry-run the command only shows the plan, and exits 1 if a host
    would be late, such as because an instance would find no host. Example: `berth host maintenance create
    --label rack=r1 --from 2026-12-24T02:00 --for 2h --dry-run`.
    """
    given = WindowOptions(**{**vars(options), "hosts": options.hosts or ()})
    async with cli.bus("maintenance") as bus:
        if cli.dry_run:
            window, plan = await plan_window(bus, given)
            await bus.rehearse(checked(MaintenanceEditRequested(edit=AddWindow(window=window))))
            _show_plan(cli, window, plan, bus.clock.now())
            return 1 if any(host.late for host in plan.hosts) else 0
        window = await add_window(bus, given)
    cli.value(window, window_text(window))
    return 0


@commands.command("set")
async def change(cli: ActCli, which: Which, options: Annotated[WindowOptions, _CHANGED]) -> int:
    """Change the times, limits or note of a window that is not over.

    Its hosts cannot be changed. Hosts that are closed already stay closed, also if the window begins later.
    """
    async with cli.bus("maintenance") as bus:
        if cli.dry_run:
            window, plan = await plan_change(bus, which, options)
            _show_plan(cli, window, plan, bus.clock.now())
            return 1 if any(host.late for host in plan.hosts) else 0
        window = await change_window(bus, which, options)
    cli.value(window, window_text(window))
    return 0


@commands.command("list")
async def list_command(
    cli: ListCli, ended: bool = option(False, "Also those that are over.", "--all")
) -> None:
    """List maintenance windows and automatic evacuations that are not over.

    The state of a window says whether its hosts will be empty in time, by the durations of earlier moves.
    """
    async with cli.bus("maintenance") as bus:
        found = await find_maintenance(bus, ended=ended)
    columns = ("id", "kind", "state", "from", "until", "drain from", "empty at", "hosts", "why")
    rows = [*map(_window_row, found.windows), *map(_evacuation_row, found.evacuations)]
    is_on = "" if found.evacuates else "; no host is evacuated automatically (setting evacuation_hook)"
    table = plain_table(columns, rows, wide=("kind", "drain from", "empty at")) if rows else f"none{is_on}"
    cli.rows((*found.windows, *found.evacuations), table)


@commands.command("show")
async def show(cli: Cli, which: Which) -> int:
    """Show a window or an evacuation: its hosts, decisions and moves."""
    async with cli.bus("maintenance") as bus:
        found = await find_maintenance(bus, subject=which)
    if not found.windows and not found.evacuations:
        raise OperationRefused(
            f"there is no window or evacuation {which!r}; `berth host maintenance list --all`"
        )
    if cli.as_json:
        cli.value(found, "")
    else:
        _show(cli, found)
    late = any(host.late for state in found.windows for host in state.hosts)
    return 1 if late or any(each.state in ("held", "unfenced") for each in found.evacuations) else 0


@commands.command("cancel")
async def cancel(cli: ActCli, which: Which) -> None:
    """End a window: no further move begins, and its hosts are opened within seconds."""
    async with cli.bus("maintenance") as bus:
        window = await window_given(bus, which)
        edit, opened = CancelWindow(window=window.id), ""
        if cli.dry_run:
            await bus.rehearse(MaintenanceEditRequested(edit=edit))
            opened = f"; its {several(len(window.roots), 'host')} would be opened" * (not window.keep_closed)
        else:
            await edit_maintenance(bus, edit)
    cli.tell(f"window {window.id} {cli.is_now('cancelled')}{opened}", id=window.id)


@commands.command("finish")
async def finish(cli: ActCli, hosts: HostNames) -> int:
    """Open hosts before their window ends, so that other hosts of their rack are drained."""
    async with cli.bus("maintenance") as bus:
        roots = tuple(host.id for host in await hosts_given(bus, hosts or (), ()))
        edit = FinishHosts(roots=roots)
        if cli.dry_run:
            await bus.rehearse(MaintenanceEditRequested(edit=edit))
            windows = (await find_maintenance(bus)).windows
            changed = sum(
                host.root in roots and host.phase not in OVER for each in windows for host in each.hosts
            )
        else:
            changed = await edit_maintenance(bus, edit)
    ends = "would end" if cli.dry_run else "has ended"
    cli.tell(f"the maintenance of {several(changed, 'host')} {ends}", changed=changed)
    return 0 if changed else 1


@commands.command("release")
async def release(
    cli: ActCli, hosts: HostNames = None, cell: str = option("", "All held hosts of this cell.")
) -> int:
    """Allow the evacuation of hosts that the rate limit holds back, because they are dead, not only
    disconnected.

    The fencing hook still switches each host off first.
    """
    if bool(hosts) == bool(cell):
        raise BadSetting("say which: names of hosts, or --cell")
    async with cli.bus("maintenance") as bus:
        roots = tuple(host.id for host in await hosts_given(bus, hosts, ())) if hosts else ()
        edit = ReleaseEvacuations(roots=roots, cell=cell)
        if cli.dry_run:
            await bus.rehearse(checked(MaintenanceEditRequested(edit=edit)))
            held = [each for each in (await find_maintenance(bus)).evacuations if each.state == "held"]
            changed = sum(each.root in roots or each.cell == cell for each in held)
        else:
            changed = await edit_maintenance(bus, edit)
    cli.tell(f"{several(changed, 'evacuation')} {cli.becomes('released')}", changed=changed)
    return 0 if changed else 1


def _window_row(state: WindowState) -> tuple[object, ...]:
    window, phases = state.window, Counter(host.phase for host in state.hosts)
    hosts = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items()))
    times = map(time_text, (window.begins, window.ends, state.drain_begins, state.empty_at))
    return window.id[:_SHORT], "window", state.progress, *times, hosts, printable(window.reason)


def _evacuation_row(dead: HostEvacuation) -> tuple[object, ...]:
    times = time_text(dead.missing_since), "-", "-", "-"
    host = f"{printable(dead.host)} of {dead.cell}"
    return dead.id[:_SHORT], "evacuation", dead.state, *times, host, printable(dead.why)


def _show_plan(cli: Cli, window: MaintenanceWindow, plan: WindowPlan, now: float) -> None:
    if cli.as_json:
        cli.value(plan, "")
        return
    cli.line(f"{window_text(window)}; nothing is stored")
    for host in plan.hosts:
        when = "drained first" if host.phase == "closing" else "drained when the budget allows it"
        cli.line(f"  {printable(host.host)}  {several(host.instances, 'instance')}, {when}")
        if host.late:
            cli.line(f"    late: {printable(host.note)}", "red")
    print_destinations(plan.instances, cli)
    for sentence, is_good in plan_sentences(window, plan, now):
        cli.line(sentence, "" if is_good else "yellow")


def _show(cli: Cli, found: MaintenanceFound) -> None:
    for state in found.windows:
        window = state.window
        until = f"from {time_text(window.begins)} until {time_text(window.ends)}"
        drain = f"drain from {time_text(state.drain_begins)}, empty at {time_text(state.empty_at)}"
        cli.line(f"window {window.id}: {state.progress}, {until}; {drain}")
        for host in state.hosts:
            late = "late, " * host.late
            note = f": {printable(host.note)}" if host.note else ""
            cli.line(f"  {printable(host.host)}  {late}{host.phase}, {host.instances} instances{note}")
    for dead in found.evacuations:
        why = f": {printable(dead.why)}" if dead.why else ""
        cli.line(f"evacuation {dead.id} of {printable(dead.host)}: {dead.state}{why}")
    for event in found.events:
        cli.line(f"  {time_text(event.at)}  {printable(event.event)}  {printable(event.detail)}")
    for move in found.moves:
        cli.line(
            f"  {time_text(move.at)}  move {move.move} of {move.build}:"
            f" {printable(move.problem or move.result) or 'started'}"
        )

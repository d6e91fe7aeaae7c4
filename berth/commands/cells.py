"""`berth cell`: lists cells, and disables or enables them for new instances."""

import asyncio
from collections.abc import Mapping
from typing import Annotated

from msgspec import structs

from berth.commands.instances import instances_table, unfinished_instances
from berth.kit.command_groups import Commands
from berth.kit.dry_run import ActCli
from berth.kit.listing import ListCli, plain_table
from berth.kit.options import described, option, positional
from berth.kit.publishing import checked
from berth.kit.terminal import complain, progress_bar
from berth.operations.cells import (
    cells_by_name,
    conductor_answers,
    host_counts,
    instances_left,
    register,
    registered_cells,
    require,
    state_of,
)
from berth.settings import BadSetting
from bus.cells import CellEditRequested, RegisterCell, RegisteredCell
from bus.clock import monotonic
from bus.delivery.recording import RecordingBus
from bus.delivery.runner import Bus
from bus.host_health import not_up
from control_room.kit.words import several

_POLL_SECONDS = 1.0
_SHOWN = 50  # remaining instances that are listed

commands = Commands(name="cell", no_args_is_help=True)

NameOfCell = Annotated[str, positional("Its name.", metavar="CELL")]
Note = Annotated[str | None, described("A note for operators; `` removes it.")]


@commands.command("list")
async def list_cells(cli: ListCli) -> None:
    """List cells with their state, hosts by state, instances, and whether their conductor answers.

    Cells come from the settings, from the registry (`berth cell create`) and from agents' reports. Instances
    are counted by their allocations on the cell's hosts: an instance in deletion counts until they are
    released.
    """
    async with cli.bus("cell") as bus:
        found = await registered_cells(bus)
        states = await host_counts(bus)
        cells = cells_by_name(found.cells, cli.settings)
        names = sorted(cells)
        answers = await asyncio.gather(*(conductor_answers(bus, name) for name in names))
        answering = dict(zip(names, answers, strict=True))
    facts, rows = [], []
    for name in names:
        cell, hosts, instances = cells[name], found.hosts.get(name, 0), found.instances.get(name, 0)
        of_cell = states if states is None else states.get(name, {})
        facts.append({
            "cell": name, "state": state_of(cell), "hosts": hosts, "instances": instances,
            "host_states": of_cell, "conductor": answering[name], "note": cell.note,
        })  # fmt: skip
        conductor = "answers" if answering[name] else "no answer"
        rows.append((name, state_of(cell), _host_count(hosts, of_cell), instances, conductor, cell.note))
    table = plain_table(("cell", "state", "hosts", "instances", "conductor", "note"), rows)
    cli.rows(facts, table if names else "no cells")


@commands.command("disable")
async def disable_command(
    cli: ActCli,
    name: NameOfCell,
    note: Note = None,
    wait: bool = option(False, "Until nothing is left there; exit 1 if something is, and list it."),
    timeout: float | None = option(
        None, "Seconds to wait at most; 0 only lists what is left (default: as long as it takes).", min=0
    ),
) -> int:
    """Disable a cell: schedulers place no new builds there. Instances stay, and builds in progress continue.

    Schedulers apply the change after a short delay; builds placed before can still arrive in the cell.
    `berth why` shows `cell_disabled` for the cell's hosts. The command moves no instance: delete them (`berth
    delete`). With --wait it waits until placement has no allocations on the cell's hosts; then `berth cell
    delete` can remove the cell.
    """
    if timeout is not None and not wait:
        raise BadSetting("--timeout limits --wait")
    async with cli.bus("cell") as bus:
        await _mark(cli, bus, name, False, note)
        return await _print_left(cli, bus, name, timeout) if wait else 0


@commands.command("enable")
async def enable_command(cli: ActCli, name: NameOfCell, note: Note = None) -> None:
    """Enable a cell for new builds; schedulers evaluate waiting requests immediately."""
    async with cli.bus("cell") as bus:
        await _mark(cli, bus, name, True, note)


async def _print_left(cli: ActCli, bus: Bus, name: str, timeout: float | None) -> int:
    """Wait until nothing is left in a cell, or until the timeout; list the instances that remain. Return 1 if
    there are any, else 0.
    """
    left = await instances_left(bus, name)
    if left and not cli.dry_run:
        left = await _wait(bus, name, left, timeout)
    instances, silent = await unfinished_instances(bus, name, _SHOWN) if left else ((), False)
    if cli.as_json:
        shown = [structs.asdict(instance) for instance in instances]
        cli.value({"cell": name, "left": left, "instances": shown}, "")
        return 1 if left else 0
    if not left:
        cli.line(f"cell {name} is empty")
        return 0
    rest = "or its leftovers, remain" if left == 1 else "or their leftovers, remain"
    cli.line(f"{several(left, 'instance')}, {rest}")
    if instances:
        table = instances_table(instances)
        cli.say.print(table.of(table.usual))
    if silent:
        complain.print(f"its conductor does not answer: `berth host list --cell {name}` shows the hosts")
    elif left > len(instances):
        more = f"... and {left - len(instances)} more: `berth instance list --cell {name} --all` shows what"
        complain.print(f"{more} has not ended", style="dim")
    return 1


def _host_count(hosts: int, states: Mapping[str, int] | None) -> str:
    """Return as text how many hosts a cell has and how many are not up, such as `5 (1 down, 1 disabled)`."""
    if states is None:
        return f"{hosts} (no scheduler answers)" if hosts else "0"
    closed = not_up(states)
    return f"{hosts} ({closed})" if closed else str(hosts)


async def _registered(
    cli: ActCli, bus: RecordingBus, before: RegisteredCell, enabled: bool, note: str | None
) -> RegisteredCell:
    """Enable or disable a registered cell, and return it; in a dry run, return what it would be."""
    edit = RegisterCell(cell=before.name, enabled=enabled, note=note)
    if not cli.dry_run:
        return await register(bus, edit)
    await bus.rehearse(checked(CellEditRequested(edit=edit)))
    return structs.replace(before, enabled=enabled, note=before.note if note is None else note)


async def _mark(cli: ActCli, bus: RecordingBus, name: str, enabled: bool, note: str | None) -> None:
    """Enable or disable a registered cell, and print its new state."""
    before = await require(bus, cli.settings, name)
    cell = await _registered(cli, bus, before, enabled, note)
    found = await registered_cells(bus)
    hosts, instances = found.hosts.get(name, 0), found.instances.get(name, 0)
    change = "was " if before.enabled == enabled else "would be " if cli.dry_run else "is "
    change += state_of(cell) + (" already" if before.enabled == enabled else "")
    stay = "" if enabled or not instances else ", which stay"
    contents = f"{several(hosts, 'host')}, {several(instances, 'instance')}{stay}"
    facts = {"cell": name, "state": state_of(cell), "hosts": hosts, "instances": instances, "note": cell.note}
    cli.tell(f"cell {name} {change}: {contents}", **facts)


async def _wait(bus: Bus, name: str, left: int, timeout: float | None) -> int:
    """Wait until no consumer has allocations on a cell's hosts, or until the timeout; return how many
    consumers remain. `left`: how many there are at the beginning.
    """
    until = None if timeout is None else monotonic() + timeout
    most = left
    with progress_bar() as bar:
        shown = bar.add_task(f"cell {name}: left", total=most)
        while left and (until is None or monotonic() < until):
            bar.update(shown, completed=most - left, total=most)
            await asyncio.sleep(_POLL_SECONDS)
            left = await instances_left(bus, name)
            most = max(most, left)
    return left

"""`berth cell`: which cells there are, and keeping new instances out of one."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import typer
from msgspec import structs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from berth import wiring
from berth.commands import cell_agents, cell_ending, cell_making, cell_permissions
from berth.commands.instances import instances_of, instances_table
from berth.commands.options import Json, StateDir
from berth.commands.terminal import complain, effective, run, say, write_json
from berth.operations.errors import checked
from berth.operations.host_states import HEALTH_SECONDS
from berth.settings import Settings
from bus import topics
from bus.cells import CellEdited, CellEditRequested, CellsFound, FindCells, RegisterCell, RegisteredCell
from bus.clock import monotonic
from bus.delivery.runner import Bus
from bus.errors import NoAnswer, OperationRefused, Unavailable, Unroutable
from bus.host_health import FindHostHealth, not_up
from bus.printing import printable
from bus.queries import FindInstances

CONDUCTOR_SECONDS = 2.0  # for the conductor's answer
_LOOK_SECONDS = 1.0
_SHOWN = 50  # instances that are left

commands = typer.Typer(
    name="cell",
    no_args_is_help=True,
)
for each in (cell_making, cell_agents, cell_ending, cell_permissions):
    commands.add_typer(each.commands)

NameOfCell = Annotated[str, typer.Argument(metavar="CELL", help="Its name.")]
Note = Annotated[str | None, typer.Option(help="What people should know of it; `` takes it away.")]


@commands.callback()
def cell() -> None:
    """Cells: close one to new instances, empty it, make one, end one."""


@commands.command("list")
def list_command(as_json: Json = False, state_dir: StateDir = None) -> None:
    """List cells with state, hosts by state, instances, and whether the conductor answers.

    Cells come from the settings, from the registry (`berth cell add`) and from agents' reports. Instances
    are counted by allocations on the cell's hosts, so one in deletion counts until it is released.
    """
    run(list_cells(effective(state_dir=state_dir).settings, as_json, say))


@commands.command("disable")
def disable_command(
    name: NameOfCell, note: Note = None, as_json: Json = False, state_dir: StateDir = None
) -> None:
    """Disable a cell: no new builds are placed there; instances stay, and builds in progress continue.

    Schedulers know within a moment; a build placed just before may still arrive. `berth why` and `berth
    what-if` show `cell_disabled` for its hosts.
    """
    run(mark(effective(state_dir=state_dir).settings, name, False, note, as_json, say))


@commands.command("enable")
def enable_command(
    name: NameOfCell, note: Note = None, as_json: Json = False, state_dir: StateDir = None
) -> None:
    """Enable a cell for new builds; waiting requests are evaluated immediately."""
    run(mark(effective(state_dir=state_dir).settings, name, True, note, as_json, say))


@commands.command("drain")
def drain_command(
    name: NameOfCell,
    wait: Annotated[bool, typer.Option("--wait", help="Until nothing is left there.")] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds to wait at most (default: as long as it takes).")
    ] = None,
    note: Note = None,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Disable a cell, and list its remaining instances; exit 0 if there are none, else 1.

    It moves nothing: instances leave when they are deleted (`berth delete`). With --wait it follows until
    placement has no allocations on the cell's hosts; then `berth cell remove` can remove it.
    """
    run(drain(effective(state_dir=state_dir).settings, name, wait, timeout, note, as_json, say))


# Looking


async def list_cells(settings: Settings, as_json: bool, say: Console) -> int:
    async with Bus(wiring.transport(settings, "cell")) as bus:
        found = await _found(bus)
        states = await host_counts(bus)
        cells = _with_the_settings(found.cells, settings)
        names = sorted(cells)
        heard = dict(
            zip(names, await asyncio.gather(*(conductor_is_heard(bus, name) for name in names)), strict=True)
        )
    table = Table("cell", "state", "hosts", "instances", "conductor", "note", box=None, pad_edge=False)
    for name in names:
        hosts, instances = found.hosts.get(name, 0), found.instances.get(name, 0)
        if as_json:
            facts = {"state": state_of(cells[name]), "hosts": hosts, "instances": instances}
            facts |= {"host_states": states.get(name, {}) if states is not None else None}
            write_json({"cell": name, **facts, "conductor": heard[name], "note": cells[name].note})
            continue
        row = (
            name,
            state_of(cells[name]),
            _hosts_in_words(hosts, states if states is None else states.get(name, {})),
            str(instances),
            "heard" if heard[name] else "not heard",
            cells[name].note,
        )
        table.add_row(*(Text(printable(one)) for one in row))
    if not as_json:
        say.print(table if names else "no cells")
    return 0


async def host_counts(bus: Bus) -> Mapping[str, Mapping[str, int]] | None:
    """Return cell → state → hosts, or None if no scheduler answers."""
    ask = bus.asker(topics.HOST_HEALTH, timeout=HEALTH_SECONDS)
    try:
        return (await ask(FindHostHealth(limit=1, counted=True))).counts
    except (NoAnswer, Unavailable, Unroutable):
        return None


def _hosts_in_words(hosts: int, states: Mapping[str, int] | None) -> str:
    """Return the text for hosts and their states, like `5 (1 down, 1 disabled)`; hosts that are up are not
    named.
    """
    if states is None:
        return f"{hosts} (no scheduler answers)" if hosts else "0"
    closed = not_up(states)
    return f"{hosts} ({closed})" if closed else str(hosts)


def state_of(cell: RegisteredCell) -> str:
    if cell.gone:
        return "removed"
    return "enabled" if cell.enabled else "disabled"


async def conductor_is_heard(bus: Bus, cell: str) -> bool:
    ask = bus.asker(topics.FIND_INSTANCES, timeout=CONDUCTOR_SECONDS)
    try:
        await ask(FindInstances(cell=cell, limit=1))
    except (Unavailable, Unroutable):
        return False
    return True


async def _found(bus: Bus) -> CellsFound:
    return await bus.asker(topics.CELLS)(FindCells())


def _with_the_settings(found: Iterable[RegisteredCell], settings: Settings) -> dict[str, RegisteredCell]:
    """Return the registered cells by name, with the missing cells of the settings."""
    cells = {name: RegisteredCell(name=name) for name in settings.cell_names}
    return cells | {cell.name: cell for cell in found}


# Marking


async def mark(
    settings: Settings, name: str, enabled: bool, note: str | None, as_json: bool, say: Console
) -> int:
    async with Bus(wiring.transport(settings, "cell")) as bus:
        before = await require(bus, settings, name)
        cell = await register(bus, RegisterCell(cell=name, enabled=enabled, note=note))
        found = await _found(bus)
    hosts, instances = found.hosts.get(name, 0), found.instances.get(name, 0)
    if as_json:
        facts = {"state": state_of(cell), "hosts": hosts, "instances": instances}
        write_json({"cell": name, **facts, "note": cell.note})
        return 0
    word = "was " if before.enabled == enabled else "is "
    word += state_of(cell) + (" already" if before.enabled == enabled else "")
    stay = "" if enabled or not instances else ", which stay"
    there = f"{_several(hosts, 'host')}, {_several(instances, 'instance')}{stay}"
    say.print(f"cell {name} {word}: {there}", markup=False)
    return 0


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


async def require(bus: Bus, settings: Settings, name: str) -> RegisteredCell:
    """Return the cell if it is registered, in the settings or has hosts; refuse other names, which may be
    misspelled.
    """
    found = await _found(bus)
    cells = _with_the_settings((cell for cell in found.cells if not cell.gone), settings)
    if name not in cells:
        raise OperationRefused(f"there is no cell {name}; there are: {', '.join(sorted(cells))}")
    return cells[name]


async def register(bus: Bus, edit: RegisterCell) -> RegisteredCell:
    result = (await bus.asker(topics.EDIT_CELL)(checked(CellEditRequested(edit=edit)))).result
    if not isinstance(result, CellEdited):
        raise OperationRefused("others are at work on it just now: try again")
    return result.cell


# Emptying


async def drain(
    settings: Settings,
    name: str,
    wait: bool,
    timeout: float | None,
    note: str | None,
    as_json: bool,
    say: Console,
) -> int:
    async with Bus(wiring.transport(settings, "cell")) as bus:
        await require(bus, settings, name)
        await register(bus, RegisterCell(cell=name, enabled=False, note=note))
        left = await _left(bus, name)
        if left and wait:
            left = await _wait(bus, name, left, timeout)
        instances, silent = await instances_of(bus, name, _SHOWN) if left else ((), False)
    if as_json:
        facts = {
            "state": "disabled",
            "left": left,
            "instances": [structs.asdict(instance) for instance in instances],
        }
        write_json({"cell": name, **facts})
        return 1 if left else 0
    if not left:
        say.print(f"cell {name} is disabled, and empty", markup=False)
        return 0
    rest = "or what is left of it, is there" if left == 1 else "or what is left of them, are there"
    say.print(f"cell {name} is disabled; {_several(left, 'instance')}, {rest}", markup=False)
    if instances:
        say.print(instances_table(instances))
    if silent:
        complain.print(f"its conductor does not answer: `berth host list --cell {name}` shows the hosts")
    elif left > len(instances):
        complain.print(
            f"... and {left - len(instances)} more: `berth instances --cell {name} --all` shows what has not"
            " ended",
            style="dim",
        )
    return 1


async def _left(bus: Bus, name: str) -> int:
    return (await _found(bus)).instances.get(name, 0)


async def _wait(bus: Bus, name: str, left: int, timeout: float | None) -> int:
    """Wait until the cell is empty or the time is over; return the number of remaining consumers."""
    until = None if timeout is None else monotonic() + timeout
    most = left
    columns: Sequence[TextColumn | BarColumn | MofNCompleteColumn] = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
    )
    with Progress(*columns, console=complain, transient=True, disable=not complain.is_terminal) as bar:
        shown = bar.add_task(f"cell {name}: left", total=most)
        while left and (until is None or monotonic() < until):
            bar.update(shown, completed=most - left, total=most)
            await asyncio.sleep(_LOOK_SECONDS)
            left = await _left(bus, name)
            most = max(most, left)
    return left

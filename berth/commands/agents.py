"""`berth agent`: the agents on the bare-metal nodes of a cell."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from berth import wiring
from berth.commands.options import Json, StateDir
from berth.commands.terminal import complain, effective, run, say, tell, write_json
from berth.operations.cells import all_shown, chosen_cells, edit_agent, find_agents, leave_nodes
from berth.settings import Settings
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.leases import AgentEditAnswered, AgentEditRequested, AgentsFound, AgentStands
from bus.masking import printable

_COLUMNS = ("agent", "cell", "state", "lease", "epoch", "free", "occupied", "leaving")

commands = typer.Typer(
    name="agent",
    no_args_is_help=True,
)

Cell = Annotated[str, typer.Option(help="The cell it is in (default: the one that has an agent so called).")]
Name = Annotated[str, typer.Argument(metavar="AGENT", help="Its name, as `berth agent list` shows it.")]
Wait = Annotated[
    float, typer.Option(min=0, metavar="SECONDS", help="Wait for so long until all of it is done; 0: do not.")
]


@commands.command("list")
def list_command(
    cell: Annotated[list[str] | None, typer.Option(help="Only of this cell; may be repeated.")] = None,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """List agents of bare-metal nodes with their leases, nodes and instances.

    Free nodes are divided among the present and enabled agents. A node with an instance, or with one coming
    or going, stays with its agent; `leaving` are nodes that an agent has been ordered to leave.
    """
    settings = effective(state_dir=state_dir).settings
    run(show_agents(settings, cell or (), as_json, say))


@commands.command("disable")
def disable_command(
    name: Name, cell: Cell = "", wait: Wait = 30.0, as_json: Json = False, state_dir: StateDir = None
) -> None:
    """Take an agent's free nodes away; it keeps nodes with instances."""
    settings = effective(state_dir=state_dir).settings
    request = AgentEditRequested(cell=cell or "any", agent=name, edit="disable")
    run(edit(settings, request, cell, wait, say, as_json))


@commands.command("enable")
def enable_command(name: Name, cell: Cell = "", as_json: Json = False, state_dir: StateDir = None) -> None:
    """Give free nodes to an agent again."""
    settings = effective(state_dir=state_dir).settings
    request = AgentEditRequested(cell=cell or "any", agent=name, edit="enable")
    run(edit(settings, request, cell, 0.0, say, as_json))


@commands.command("rehome")
def rehome_command(
    name: Name,
    to: Annotated[str, typer.Option(metavar="AGENT", help="Who gets them (default: as the ring says).")] = "",
    node: Annotated[
        list[str] | None, typer.Option(metavar="UUID", help="Only this node; may be repeated.")
    ] = None,
    cell: Cell = "",
    wait: Wait = 30.0,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Let other agents take over all nodes of an agent that will not return, also those with instances.

    Nothing is done to the instances. If the agent is still running, it is ordered to stop, and the others
    begin after its confirmation; if it is silent, after its lease has expired. Builds and deletions in
    progress continue there. A present and enabled agent would get free nodes back: disable it first, or name
    nodes.
    """
    settings = effective(state_dir=state_dir).settings
    request = AgentEditRequested(
        cell=cell or "any", agent=name, edit="rehome", to=to, nodes=tuple(node or ())
    )
    run(edit(settings, request, cell, wait, say, as_json))


async def show_agents(settings: Settings, only: Sequence[str], as_json: bool, say: Console) -> int:
    async with Bus(wiring.transport(settings, "agent")) as bus:
        found, silent = await find_agents(bus, await chosen_cells(bus, settings, only))
    if as_json:
        for cell, answer in found.items():
            for agent in answer.agents:
                write_json({"cell": cell, **_as_json(agent)})
    else:
        table = _table(found, bus.clock)
        say.print(table if table.row_count else "no agents share bare metal")
    all_shown(silent)
    return 0


def _as_json(agent: AgentStands) -> dict[str, object]:
    return {name: getattr(agent, name) for name in agent.__struct_fields__}


def _table(found: dict[str, AgentsFound], clock: Clock) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in _COLUMNS:
        table.add_column(title, no_wrap=True, justify="left" if title in _COLUMNS[:4] else "right")
    for cell, answer in found.items():
        for agent in answer.agents:
            ago = max(clock.now() - agent.heard, 0.0)
            state = "[green]alive[/green]" if agent.alive else "[red]silent[/red]"
            row = [printable(agent.agent), cell, state + (", disabled" if agent.disabled else "")]
            row.append(
                f"{agent.lease:g} s, asked for {ago:.1f} s ago" if agent.alive else f"over, {ago:.0f} s ago"
            )
            table.add_row(
                *row, *(str(count) for count in (agent.epoch, agent.free, agent.occupied, agent.leaving))
            )
    return table


async def edit(
    settings: Settings,
    request: AgentEditRequested,
    cell: str,
    wait: float,
    say: Console,
    as_json: bool = False,
) -> int:
    name = request.agent
    async with Bus(wiring.transport(settings, "agent")) as bus:
        cell, answer = await edit_agent(bus, settings, request, cell)
        facts = {"agent": name, "cell": cell, "edit": request.edit, "moved": answer.moved}
        sentence = f"{name} in cell {cell}: {_done(request.edit, answer)}"
        if not as_json or not (answer.waiting and wait):
            tell(say, as_json, sentence, **facts, waiting=answer.waiting)
        if answer.waiting and wait:
            if left := await leave_nodes(bus, cell, name, wait):
                complain.print(
                    f"after {wait:g} s {left} nodes still wait for it to stop: `berth agent list` shows them"
                )
                raise OperationRefused("not all of it is done yet")
            tell(say, as_json, "done", **facts, waiting=0)
    return 0


def _done(what: str, answer: AgentEditAnswered) -> str:
    words = {
        "disable": "gets no more nodes",
        "enable": "gets nodes again",
        "rehome": "its nodes go to others",
    }
    moved = f"; {answer.moved} nodes are another's now" if answer.moved else ""
    waiting = f"; {answer.waiting} will be when it has stopped acting on them" if answer.waiting else ""
    return f"{words[what]}{moved}{waiting}"

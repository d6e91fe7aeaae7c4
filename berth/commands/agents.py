"""`berth agent`: the agents on the bare-metal nodes of a cell."""

from typing import Annotated

from msgspec import structs
from rich.table import Table
from rich.text import Text

from berth.commands.options import Commands, described, option, positional
from berth.commands.terminal import Cli, complain, plain_table
from berth.operations.cells import all_shown, chosen_cells, edit_agent, find_agents, leave_nodes
from bus.clock import Clock
from bus.errors import OperationRefused
from bus.leases import AgentEditRequested, AgentsFound

_COLUMNS = ("agent", "cell", "state", "lease", "epoch", "free", "occupied", "leaving")

_DONE = {
    "disable": "gets no further nodes",
    "enable": "gets nodes again",
    "rehome": "its nodes go to other agents",
}

commands = Commands(name="agent", no_args_is_help=True)

Cell = Annotated[str, described("Its cell (default: the cell that has an agent of this name).")]
Name = Annotated[str, positional("Its name, as `berth agent list` shows it.", metavar="AGENT")]
Wait = Annotated[float, described("Wait so long until it is done; 0: do not.", min=0, metavar="SECONDS")]


@commands.command("list")
async def show_agents(
    cli: Cli, cells: list[str] | None = option(None, "Only of this cell; may be repeated.", "--cell")
) -> int:
    """List agents of bare-metal nodes with their leases, nodes and instances.

    Free nodes are divided among the present and enabled agents. A node with an instance, or with one coming
    or going, stays with its agent; `leaving` are nodes that an agent has been ordered to leave.
    """
    async with cli.bus("agent") as bus:
        found, silent = await find_agents(bus, await chosen_cells(bus, cli.settings, cells or ()))
    agents = [
        {"cell": cell, **structs.asdict(agent)} for cell, part in found.items() for agent in part.agents
    ]
    cli.rows(agents, _table(found, bus.clock) if agents else "no agents share bare metal")
    all_shown(silent)
    return 0


@commands.command("disable")
async def disable_command(cli: Cli, name: Name, cell: Cell = "", wait: Wait = 30.0) -> int:
    """Take an agent's free nodes away; it keeps nodes with instances."""
    return await edit(cli, AgentEditRequested(cell="any", agent=name, edit="disable"), cell, wait)


@commands.command("enable")
async def enable_command(cli: Cli, name: Name, cell: Cell = "") -> int:
    """Give free nodes to an agent again."""
    return await edit(cli, AgentEditRequested(cell="any", agent=name, edit="enable"), cell, 0.0)


@commands.command("rehome")
async def rehome_command(
    cli: Cli,
    name: Name,
    to: str = option("", "The agent that gets them (default: by the ring).", metavar="AGENT"),
    node: list[str] | None = option(None, "Only this node; may be repeated.", metavar="UUID"),
    cell: Cell = "",
    wait: Wait = 30.0,
) -> int:
    """Let other agents take over all nodes of an agent that will not return, also those with instances.

    Nothing is done to the instances. If the agent is still running, it is ordered to stop, and the others
    begin after its confirmation; if it is silent, after its lease has expired. Builds and deletions in
    progress continue there. A present and enabled agent would get free nodes back: disable it first, or name
    nodes.
    """
    nodes = tuple(node or ())
    request = AgentEditRequested(cell="any", agent=name, edit="rehome", to=to, nodes=nodes)
    return await edit(cli, request, cell, wait)


def _table(found: dict[str, AgentsFound], clock: Clock) -> Table:
    rows = []
    for cell, answer in found.items():
        for agent in answer.agents:
            ago = max(clock.now() - agent.heard, 0.0)
            marked = "[green]alive[/green]" if agent.alive else "[red]silent[/red]"
            state = Text.from_markup(marked + (", disabled" if agent.disabled else ""))
            lease = f"{agent.lease:g} s, asked {ago:.1f} s ago" if agent.alive else f"over, {ago:.0f} s ago"
            rows.append(
                (agent.agent, cell, state, lease, agent.epoch, agent.free, agent.occupied, agent.leaving)
            )
    table = plain_table(_COLUMNS, rows, folded=())
    for column in table.columns[4:]:
        column.justify = "right"
    return table


async def edit(cli: Cli, request: AgentEditRequested, cell: str, wait: float) -> int:
    name = request.agent
    async with cli.bus("agent") as bus:
        cell, answer = await edit_agent(bus, cli.settings, request, cell)
        facts = {"agent": name, "cell": cell, "edit": request.edit, "moved": answer.moved}
        moved = f"; {answer.moved} nodes are another's now" if answer.moved else ""
        later = f"; {answer.waiting} will be when it has stopped acting on them" if answer.waiting else ""
        sentence = f"{name} in cell {cell}: {_DONE[request.edit]}{moved}{later}"
        if not cli.as_json or not (answer.waiting and wait):
            cli.tell(sentence, **facts, waiting=answer.waiting)
        if answer.waiting and wait:
            if left := await leave_nodes(bus, cell, name, wait):
                complain.print(
                    f"after {wait:g} s {left} nodes still wait for it to stop: `berth agent list` shows them"
                )
                raise OperationRefused("not all of it is done yet")
            cli.tell("done", **facts, waiting=0)
    return 0

"""`berth cell agent`: controls which agents use a cell's shared nodes."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import structs
from rich.table import Table
from rich.text import Text

from berth.kit import (
    ActCli,
    Commands,
    ListCli,
    chosen_cells,
    complain,
    described,
    host_id,
    option,
    plain_table,
    positional,
    require_all_answers,
)
from bus.clock import Clock
from bus.errors import OperationRefused
from control_room.kit import several
from features.shared_nodes.messages import AgentsFound, SharingEditRequested
from features.shared_nodes.operations import edit_agent, find_agents, leave_nodes, suppose_edit

_COLUMNS = ("agent", "cell", "state", "lease", "epoch", "free", "occupied", "leaving")

_DONE = {
    "disable": "gets no further nodes",
    "enable": "gets nodes again",
    "rehome": "its nodes go to other agents",
}

commands = Commands()

Cell = Annotated[str, described("Its cell (default: the cell that has an agent of this name).")]
Name = Annotated[str, positional("Its name, as `berth cell agent list` shows it.", metavar="AGENT")]
Wait = Annotated[float, described("Wait so long until it is done; 0: do not.", min=0, metavar="SECONDS")]


@commands.command("list")
async def show_agents(
    cli: ListCli, cells: list[str] | None = option(None, "Only of this cell; may be repeated.", "--cell")
) -> None:
    """List the agents of bare-metal nodes, with their leases, nodes and instances.

    Free nodes are divided among the running and enabled agents. A node with an instance (active, being built
    or being deleted) stays with its agent; `leaving` counts nodes that an agent was ordered to leave.
    """
    async with cli.bus("agent") as bus:
        found, silent = await find_agents(bus, await chosen_cells(bus, cli.settings, cells or ()))
    agents = [
        {"cell": cell, **structs.asdict(agent)} for cell, part in found.items() for agent in part.agents
    ]
    cli.rows(agents, _table(found, bus.clock) if agents else "no agents share bare metal")
    require_all_answers(silent)


@commands.command("disable")
async def disable_command(cli: ActCli, name: Name, cell: Cell = "", wait: Wait = 30.0) -> None:
    """Disable an agent: its free nodes go to other agents; it keeps nodes with instances."""
    await edit(cli, SharingEditRequested(cell="any", agent=name, edit="disable"), cell, wait)


@commands.command("enable")
async def enable_command(cli: ActCli, name: Name, cell: Cell = "") -> None:
    """Enable an agent, so that free nodes are assigned to it again."""
    await edit(cli, SharingEditRequested(cell="any", agent=name, edit="enable"), cell, 0.0)


@commands.command("rehome")
async def rehome_command(
    cli: ActCli,
    name: Name,
    to: str = option("", "The agent that gets them (default: those with the fewest nodes).", metavar="AGENT"),
    node: list[str] | None = option(None, "Only this node; may be repeated.", metavar="NAME|UUID"),
    cell: Cell = "",
    wait: Wait = 30.0,
) -> None:
    """Assign all nodes of an agent to other agents, including nodes with instances.

    Use this if the agent will not return. The instances continue to run. An agent that still runs is ordered
    to leave the nodes. The new agents act on the nodes after the old agent has confirmed or, without an
    answer, after its lease has expired; they continue builds and deletions in progress. An agent that runs
    and is enabled would get free nodes again: disable the agent first, or name nodes with --node.
    """
    request = SharingEditRequested(cell="any", agent=name, edit="rehome", to=to)
    await edit(cli, request, cell, wait, node or ())


def _table(found: dict[str, AgentsFound], clock: Clock) -> Table:
    rows = []
    for cell, answer in found.items():
        for agent in answer.agents:
            ago = max(clock.now() - agent.asked_at, 0.0)
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


async def edit(
    cli: ActCli, request: SharingEditRequested, cell: str, wait: float, nodes: Sequence[str] = ()
) -> None:
    """Send a change of an agent, for `nodes` (names or uuids) only if given, and print the result."""
    name = request.agent
    async with cli.bus("agent") as bus:
        roots = [await host_id(bus, node) for node in nodes]
        request = structs.replace(request, nodes=tuple(roots))
        if cli.dry_run:
            would = await suppose_edit(bus, cli.settings, request, cell)
            facts = {"agent": name, "edit": request.edit, **vars(would)}
            having = f", {would.occupied} of them with an instance" if would.occupied else ""
            nodes = f"{several(would.nodes, 'node')} would go to other agents{having}"
            does = "would get nodes again" if request.edit == "enable" else nodes
            cli.tell(f"{name} in cell {would.cell}: {does}", **facts)
            return
        cell, answer = await edit_agent(bus, cli.settings, request, cell)
        facts = {"agent": name, "cell": cell, "edit": request.edit, "moved": answer.moved}
        moved = f"; {answer.moved} nodes have another agent now" if answer.moved else ""
        later = f"; {answer.waiting} will, when this agent has stopped acting" if answer.waiting else ""
        sentence = f"{name} in cell {cell}: {_DONE[request.edit]}{moved}{later}"
        if not cli.as_json or not (answer.waiting and wait):
            cli.tell(sentence, **facts, waiting=answer.waiting)
        if answer.waiting and wait:
            if left := await leave_nodes(bus, cell, name, wait):
                complain.print(
                    f"after {wait:g} s {left} nodes still wait for it to stop: `berth cell agent list`"
                    " shows them"
                )
                raise OperationRefused("not all of it is done yet")
            cli.tell("done", **facts, waiting=0)

"""The agents on the bare-metal nodes of cells: which there are, and edits of their shares."""

import asyncio
from collections.abc import Sequence

from msgspec import structs

from berth.operations.cells import ask_cells, chosen_cells, named
from berth.operations.errors import checked
from berth.settings import Settings
from bus import topics
from bus.clock import monotonic
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.leases import AgentEditAnswered, AgentEditRequested, AgentsFound, FindAgents

SECONDS = 10.0  # a cell may take to answer
_LOOK_AGAIN = 0.5


async def find_agents(bus: Bus, cells: Sequence[str]) -> tuple[dict[str, AgentsFound], list[str]]:
    """Return the agents of each cell, and the cells that did not answer."""
    ask = bus.asker(topics.FIND_AGENTS, timeout=SECONDS)
    return await ask_cells(cells, lambda cell: ask(FindAgents(cell=cell)))


async def edit_agent(
    bus: Bus, settings: Settings, request: AgentEditRequested, cell: str
) -> tuple[str, AgentEditAnswered]:
    """Edit the agent, in the cell or in the only one that has it. Return the cell and its answer."""
    checked(request)
    cell = await _cell_of(bus, request.agent, await chosen_cells(bus, settings, [cell] if cell else ()))
    answer = await bus.asker(topics.EDIT_AGENT, timeout=SECONDS)(structs.replace(request, cell=cell))
    if answer.refused:
        raise OperationRefused(answer.refused)
    return cell, answer


async def _cell_of(bus: Bus, name: str, cells: Sequence[str]) -> str:
    found, silent = await find_agents(bus, cells)
    having = [cell for cell, answer in found.items() if name in (agent.agent for agent in answer.agents)]
    if len(having) == 1:
        return having[0]
    if having:
        raise OperationRefused(f"{name} is in cells {', '.join(having)}: say which with --cell")
    known = ", ".join(sorted({agent.agent for answer in found.values() for agent in answer.agents})) or "none"
    unheard = f"; {named(silent)} did not answer" if silent else ""
    raise OperationRefused(f"no agent {name!r} shares bare metal; there are: {known}{unheard}")


async def leave_nodes(bus: Bus, cell: str, name: str, seconds: float) -> int:
    """Wait until the agent has left the nodes that it was ordered to leave; return how many remain."""
    until, left = monotonic() + seconds, 0
    while monotonic() < until:
        found, _ = await find_agents(bus, [cell])
        agents = {agent.agent: agent for agent in found[cell].agents} if cell in found else {}
        if cell in found and not (left := agents[name].leaving if name in agents else 0):
            return 0
        await asyncio.sleep(_LOOK_AGAIN)
    return left

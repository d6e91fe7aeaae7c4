"""Queries and edits agents that share nodes, in all cells."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from berth.kit import Settings, ask_cells, cells_text, checked, chosen_cells
from bus.clock import monotonic
from bus.delivery.recording import RecordingBus
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from features.shared_nodes.core.ring import RingMember, refusal
from features.shared_nodes.messages import (
    EDIT_SHARING,
    FIND_AGENTS,
    AgentsFound,
    FindAgents,
    SharingEditAnswered,
    SharingEditRequested,
)

AGENT_SECONDS = 10.0  # time limit for a cell's answer about agents
_RETRY_SECONDS = 0.5


async def find_agents(bus: Bus, cells: Sequence[str]) -> tuple[dict[str, AgentsFound], list[str]]:
    """Return the bare-metal agents of each cell, and the cells that did not answer."""
    ask = bus.asker(FIND_AGENTS, timeout=AGENT_SECONDS)
    return await ask_cells(cells, lambda cell: ask(FindAgents(cell=cell)))


async def edit_agent(
    bus: Bus, settings: Settings, request: SharingEditRequested, cell: str
) -> tuple[str, SharingEditAnswered]:
    """Send a change of a bare-metal agent to its cell; return the cell's name and answer.

    If `cell` is "", all cells are searched for the agent. Raise OperationRefused if the cell refuses, or if
    not exactly one cell has the agent.
    """
    checked(request)
    cell = await _cell_of(bus, request.agent, await chosen_cells(bus, settings, [cell] if cell else ()))
    answer = await bus.asker(EDIT_SHARING, timeout=AGENT_SECONDS)(structs.replace(request, cell=cell))
    if answer.refused:
        raise OperationRefused(answer.refused)
    return cell, answer


@dataclass(frozen=True)
class SupposedChange:
    """The numbers of an agent's nodes that would go to other agents, and of their instances."""

    cell: str
    nodes: int
    occupied: int


async def suppose_edit(
    bus: RecordingBus, settings: Settings, request: SharingEditRequested, cell: str
) -> SupposedChange:
    """Return what a change of a bare-metal agent would do; raise the errors of `edit_agent`."""
    checked(request)
    cell = await _cell_of(bus, request.agent, await chosen_cells(bus, settings, [cell] if cell else ()))
    await bus.rehearse(structs.replace(request, cell=cell))
    found, _ = await find_agents(bus, [cell])
    agents = {agent.agent: agent for agent in found[cell].agents} if cell in found else {}
    members = {
        name: RingMember(agent=name, pool=agent.pool, alive=agent.alive, disabled=agent.disabled)
        for name, agent in agents.items()
    }
    if why := refusal(request, members):
        raise OperationRefused(why)
    agent = agents[request.agent]
    match request.edit:
        case "disable":
            return SupposedChange(cell, 0 if agent.disabled else agent.free, 0)
        case "rehome" if request.nodes:
            return SupposedChange(cell, len(request.nodes), 0)
        case "rehome":
            return SupposedChange(cell, agent.free + agent.occupied, agent.occupied)
    return SupposedChange(cell, 0, 0)


async def _cell_of(bus: Bus, name: str, cells: Sequence[str]) -> str:
    found, silent = await find_agents(bus, cells)
    having = [cell for cell, answer in found.items() if name in (agent.agent for agent in answer.agents)]
    if len(having) == 1:
        return having[0]
    if having:
        raise OperationRefused(f"{name} is in cells {', '.join(having)}: name one with --cell")
    known = ", ".join(sorted({agent.agent for answer in found.values() for agent in answer.agents})) or "none"
    no_answer = f"; {cells_text(silent)} did not answer" if silent else ""
    raise OperationRefused(f"no agent {name!r} shares bare metal; there are: {known}{no_answer}")


async def leave_nodes(bus: Bus, cell: str, name: str, seconds: float) -> int:
    """Wait at most `seconds` until a bare-metal agent has released the nodes that it is leaving; return how
    many nodes are not released yet.
    """
    until, left = monotonic() + seconds, 0
    while monotonic() < until:
        found, _ = await find_agents(bus, [cell])
        agents = {agent.agent: agent for agent in found[cell].agents} if cell in found else {}
        if cell in found and not (left := agents[name].leaving if name in agents else 0):
            return 0
        await asyncio.sleep(_RETRY_SECONDS)
    return left

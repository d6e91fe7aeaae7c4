"""Queries and edits cells: their registration, builds, instances, and removed agents."""

from collections.abc import Iterable, Mapping
from typing import Literal

from berth.kit.publishing import checked
from berth.operations.host_states import HEALTH_SECONDS
from berth.settings import Settings
from bus import topics
from bus.cells import CellEdited, CellEditRequested, CellsFound, FindCells, RegisterCell, RegisteredCell
from bus.delivery.runner import Bus
from bus.errors import UNANSWERED, OperationRefused, Unavailable, Unroutable
from bus.host_health import FindHostHealth
from bus.queries import FindInstances
from bus.removed_agents import AgentEditAnswered, AgentEditRequested

CONDUCTOR_SECONDS = 2.0  # time limit for the conductor's answer


async def registered_cells(bus: Bus) -> CellsFound:
    return await bus.asker(topics.CELLS)(FindCells())


def cells_by_name(found: Iterable[RegisteredCell], settings: Settings) -> dict[str, RegisteredCell]:
    """Return a mapping of names to the registered cells, and to cells that only the settings name."""
    cells = {name: RegisteredCell(name=name) for name in settings.cell_names}
    return cells | {cell.name: cell for cell in found}


async def host_counts(bus: Bus) -> Mapping[str, Mapping[str, int]] | None:
    """Return the numbers of hosts by cell and by state, or None if no scheduler answers."""
    ask = bus.asker(topics.HOST_HEALTH, timeout=HEALTH_SECONDS)
    try:
        return (await ask(FindHostHealth(limit=1, counted=True))).counts
    except (Unavailable, Unroutable):
        return None


def state_of(cell: RegisteredCell) -> str:
    """Return the state of a cell in one word."""
    if cell.gone:
        return "removed"
    return "enabled" if cell.enabled else "disabled"


async def conductor_answers(bus: Bus, cell: str) -> bool:
    """Return whether the conductor of a cell answers in time."""
    ask = bus.asker(topics.FIND_INSTANCES, timeout=CONDUCTOR_SECONDS)
    try:
        await ask(FindInstances(cell=cell, limit=1))
    except (Unavailable, Unroutable):
        return False
    return True


async def require(bus: Bus, settings: Settings, name: str) -> RegisteredCell:
    """Return the cell of this name; raise OperationRefused unless it is registered or in the settings."""
    found = await registered_cells(bus)
    cells = cells_by_name((cell for cell in found.cells if not cell.gone), settings)
    if name not in cells:
        raise OperationRefused(f"there is no cell {name}; there are: {', '.join(sorted(cells))}")
    return cells[name]


async def register(bus: Bus, edit: RegisterCell) -> RegisteredCell:
    """Register or change a cell; raise OperationRefused if other processes change it concurrently."""
    result = (await bus.asker(topics.EDIT_CELL)(checked(CellEditRequested(edit=edit)))).result
    if not isinstance(result, CellEdited):
        raise OperationRefused("other processes are changing it: try again")
    return result.cell


async def instances_left(bus: Bus, name: str) -> int:
    """Return how many consumers have allocations in a cell, so that it cannot be removed yet."""
    return (await registered_cells(bus)).instances.get(name, 0)


AGENT_SECONDS = 10.0  # time limit for a cell's answer about agents


async def mark_agent(
    bus: Bus, cell: str, name: str, edit: Literal["remove", "restore"], seconds: float
) -> AgentEditAnswered | None:
    """Inform a cell that an agent was removed, or exists again; return the cell's answer, or None without
    one.
    """
    request = checked(AgentEditRequested(cell=cell, agent=name, edit=edit))
    try:
        return await bus.asker(topics.EDIT_AGENT, timeout=seconds)(request)
    except UNANSWERED:
        return None

"""Queries and edits cells: their registration, builds, instances, and agents of bare-metal nodes."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

from msgspec import structs

from berth.operations.host_states import HEALTH_SECONDS
from berth.operations.publishing import checked
from berth.settings import BadSetting, Settings
from bus import topics
from bus.cells import CellEdited, CellEditRequested, CellsFound, FindCells, RegisterCell, RegisteredCell
from bus.clock import monotonic
from bus.decisions import FindRefused, RefusedBuild
from bus.delivery.runner import Bus
from bus.errors import UNANSWERED, OperationRefused, Unavailable, Unroutable
from bus.host_health import FindHostHealth
from bus.leases import AgentEditAnswered, AgentEditRequested, AgentsFound, FindAgents
from bus.queries import BuildStands, FindBuilds, FindInstances, InstancesFound

R = TypeVar("R")

BUILD_SECONDS = 5.0  # time limit for a cell's answer about builds
SECONDS = 1.0  # time limit for placement's answer; without it only the cells of the settings are used


async def known_cells(bus: Bus, settings: Settings) -> tuple[str, ...]:
    """Return the names of the cells in the settings, followed by the cells that are registered only in
    placement, if placement answers.
    """
    if settings.embedded:
        return settings.cell_names
    try:
        found = await bus.asker(topics.CELLS, timeout=SECONDS)(FindCells(counted=False))
    except UNANSWERED:
        return settings.cell_names
    return tuple(dict.fromkeys((*settings.cell_names, *(cell.name for cell in found.cells))))


async def chosen_cells(
    bus: Bus, settings: Settings, only: Sequence[str], option: str = "--cell"
) -> Sequence[str]:
    """Return the cells in `only`, or all cells if it is empty. Raise BadSetting, with the name of the
    command's `option`, if a cell is unknown.
    """
    cells = await known_cells(bus, settings)
    for cell in only:
        if cell not in cells:
            raise BadSetting(f"{option} {cell!r}: cells are {', '.join(cells)}")
    return only or cells


async def check_to_cell(bus: Bus, settings: Settings, cell: str) -> None:
    """Raise BadSetting if the destination cell of a move is unknown; an empty name means the present cell."""
    if cell:
        await chosen_cells(bus, settings, [cell], "--to-cell")


async def ask_cells(
    cells: Sequence[str], ask: Callable[[str], Awaitable[R | None]]
) -> tuple[dict[str, R], list[str]]:
    """Send a query to cells in parallel; return the answers by cell, and the cells that did not answer."""

    async def ask_cell(cell: str) -> R | None:
        try:
            return await ask(cell)
        except (Unavailable, Unroutable):
            return None

    answers = await asyncio.gather(*(ask_cell(cell) for cell in cells))
    found = {cell: answer for cell, answer in zip(cells, answers, strict=True) if answer is not None}
    return found, [cell for cell in cells if cell not in found]


def require_all_answers(silent: Sequence[str]) -> None:
    """Raise OperationRefused if some cells did not answer; call this after the answers were printed."""
    if silent:
        raise OperationRefused(f"not shown, for it did not answer: {named(silent)}")


def named(cells: Sequence[str]) -> str:
    return f"cell {', cell '.join(cells)}"


def uuid_of(given: str, what: str = "a build") -> str:
    """Return a uuid in lower case with dashes; raise BadSetting, which names `what`, for any other text."""
    try:
        return str(uuid.UUID(given))
    except ValueError:
        raise BadSetting(f"{given!r} is not the uuid of {what}") from None


async def builds_by_uuid(
    bus: Bus, settings: Settings, builds: Sequence[str], cell: str = ""
) -> dict[str, BuildStands]:
    """Return builds by uuid, in the given order; raise OperationRefused if a build is unknown to all cells,
    or to the given `cell`.
    """
    cells = (cell,) if cell else await known_cells(bus, settings)
    find, wanted = bus.asker(topics.FIND_BUILDS, timeout=BUILD_SECONDS), tuple(dict.fromkeys(builds))
    answers, silent = await ask_cells(cells, lambda each: find(FindBuilds(cell=each, builds=wanted)))
    found = {stands.build: stands for answer in answers.values() for stands in answer.builds}
    missing = [build for build in builds if build not in found]
    if missing:
        no_answer = f"; did not answer: {named(silent)}" if silent else ""
        raise OperationRefused(f"no cell knows a build {', '.join(missing)}{no_answer}")
    return {build: found[build] for build in builds}


INSTANCE_SECONDS = 10.0  # time limit for a cell's answer with a page of its instances
PAGE = 500  # instances in one page


async def instance_pages(
    bus: Bus, question: FindInstances, most: int | None = None
) -> AsyncIterator[InstancesFound]:
    """Yield pages with together at most `most` instances of a cell. Only the first page has the number of all
    instances, if `question` asks for it.
    """
    ask = bus.asker(topics.FIND_INSTANCES, timeout=INSTANCE_SECONDS)
    taken, more = 0, True
    while more and (most is None or taken < most):
        limit = PAGE if most is None else min(PAGE, most - taken)
        page = await ask(structs.replace(question, limit=limit))
        yield page
        taken += max(len(page.instances), 1)
        question, more = structs.replace(question, after=page.last, count=False), page.more


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
    if cell.gone:
        return "removed"
    return "enabled" if cell.enabled else "disabled"


async def conductor_answers(bus: Bus, cell: str) -> bool:
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
    result = (await bus.asker(topics.EDIT_CELL)(checked(CellEditRequested(edit=edit)))).result
    if not isinstance(result, CellEdited):
        raise OperationRefused("other processes are changing it: try again")
    return result.cell


async def instances_left(bus: Bus, name: str) -> int:
    return (await registered_cells(bus)).instances.get(name, 0)


AGENT_SECONDS = 10.0  # time limit for a cell's answer about agents
_RETRY_SECONDS = 0.5


async def find_agents(bus: Bus, cells: Sequence[str]) -> tuple[dict[str, AgentsFound], list[str]]:
    """Return the bare-metal agents of each cell, and the cells that did not answer."""
    ask = bus.asker(topics.FIND_AGENTS, timeout=AGENT_SECONDS)
    return await ask_cells(cells, lambda cell: ask(FindAgents(cell=cell)))


async def edit_agent(
    bus: Bus, settings: Settings, request: AgentEditRequested, cell: str
) -> tuple[str, AgentEditAnswered]:
    """Send a change of a bare-metal agent to its cell; return the cell's name and answer.

    If `cell` is "", all cells are searched for the agent. Raise OperationRefused if the cell refuses, or if
    not exactly one cell has the agent.
    """
    checked(request)
    cell = await _cell_of(bus, request.agent, await chosen_cells(bus, settings, [cell] if cell else ()))
    answer = await bus.asker(topics.EDIT_AGENT, timeout=AGENT_SECONDS)(structs.replace(request, cell=cell))
    if answer.refused:
        raise OperationRefused(answer.refused)
    return cell, answer


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


async def _cell_of(bus: Bus, name: str, cells: Sequence[str]) -> str:
    found, silent = await find_agents(bus, cells)
    having = [cell for cell, answer in found.items() if name in (agent.agent for agent in answer.agents)]
    if len(having) == 1:
        return having[0]
    if having:
        raise OperationRefused(f"{name} is in cells {', '.join(having)}: name one with --cell")
    known = ", ".join(sorted({agent.agent for answer in found.values() for agent in answer.agents})) or "none"
    no_answer = f"; {named(silent)} did not answer" if silent else ""
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


async def refused_builds(bus: Bus, question: FindRefused) -> list[RefusedBuild]:
    """Return the builds that ended without a host, from the schedulers' decisions."""
    ask, found = bus.asker(topics.REFUSED), list[RefusedBuild]()
    while True:
        page = await ask(question)
        found.extend(page.builds)
        if not page.last:
            return found
        question = structs.replace(question, after=page.last)

"""Queries to cells: their names, parallel queries, builds by uuid, and cells that do not answer."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from berth.settings import BadSetting, Settings
from bus import topics
from bus.cells import FindCells
from bus.delivery.runner import Bus
from bus.errors import AnswerRefused, OperationRefused, Unavailable, Unroutable
from bus.queries import BuildStands, FindBuilds

R = TypeVar("R")

BUILD_SECONDS = 5.0  # for a cell's answer about builds
SECONDS = 1.0  # for placement's answer; without it only the cells of the settings are used


async def known_cells(bus: Bus, settings: Settings) -> tuple[str, ...]:
    """Return the cells of the settings, then the registered ones. An embedded berth has only those of the
    settings.
    """
    if settings.embedded:
        return settings.cell_names
    try:
        found = await bus.asker(topics.CELLS, timeout=SECONDS)(FindCells(counted=False))
    except (Unavailable, Unroutable, AnswerRefused):
        return settings.cell_names
    return tuple(dict.fromkeys((*settings.cell_names, *(cell.name for cell in found.cells))))


async def chosen_cells(
    bus: Bus, settings: Settings, only: Sequence[str], option: str = "--cell"
) -> Sequence[str]:
    """Return the cells of the option, which must exist; without the option, all cells."""
    cells = await known_cells(bus, settings)
    for one in only:
        if one not in cells:
            raise BadSetting(f"{option} {one!r}: cells are {', '.join(cells)}")
    return only or cells


async def check_to_cell(bus: Bus, settings: Settings, cell: str) -> None:
    """Raise BadSetting for an unknown destination cell. An empty name means the instance's present cell."""
    if cell:
        await chosen_cells(bus, settings, [cell], "--to-cell")


async def ask_cells(
    cells: Sequence[str], ask: Callable[[str], Awaitable[R]]
) -> tuple[dict[str, R], list[str]]:
    """Query the cells in parallel. Return their answers, and the cells that did not answer."""

    async def one(cell: str) -> R | None:
        try:
            return await ask(cell)
        except (Unavailable, Unroutable):
            return None

    answers = await asyncio.gather(*(one(cell) for cell in cells))
    found = {cell: answer for cell, answer in zip(cells, answers, strict=True) if answer is not None}
    return found, [cell for cell in cells if cell not in found]


def all_shown(silent: Sequence[str]) -> None:
    """Raise OperationRefused if some cells did not answer; call it after the rest was shown."""
    if silent:
        raise OperationRefused(f"not shown, for it did not answer: {named(silent)}")


def named(cells: Sequence[str]) -> str:
    return f"cell {', cell '.join(cells)}"


def uuid_of(given: str, what: str = "a build") -> str:
    """Return the uuid in canonical form, or raise OperationRefused."""
    try:
        return str(uuid.UUID(given))
    except ValueError:
        raise BadSetting(f"{given!r} is not the uuid of {what}") from None


async def builds_by_uuid(
    bus: Bus, settings: Settings, builds: Sequence[str], cell: str = ""
) -> dict[str, BuildStands]:
    """Return the state of each build, in the given order. Raise OperationRefused if no cell knows one."""
    cells = (cell,) if cell else await known_cells(bus, settings)
    find, wanted = bus.asker(topics.FIND_BUILDS, timeout=BUILD_SECONDS), tuple(dict.fromkeys(builds))
    answers, silent = await ask_cells(cells, lambda each: find(FindBuilds(cell=each, builds=wanted)))
    found = {stands.build: stands for answer in answers.values() for stands in answer.builds}
    missing = [build for build in builds if build not in found]
    if missing:
        unheard = f"; did not answer: {named(silent)}" if silent else ""
        raise OperationRefused(f"no cell knows a build {', '.join(missing)}{unheard}")
    return {build: found[build] for build in builds}

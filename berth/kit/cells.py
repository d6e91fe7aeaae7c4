"""Finds the cells of a region, and sends queries to several cells in parallel."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from berth.settings import BadSetting, Settings
from bus import topics
from bus.cells import FindCells
from bus.delivery.runner import Bus
from bus.errors import UNANSWERED, OperationRefused, Unavailable, Unroutable

R = TypeVar("R")


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
        raise OperationRefused(f"not shown, for it did not answer: {cells_text(silent)}")


def cells_text(cells: Sequence[str]) -> str:
    """Return the cells as part of a sentence: "cell a, cell b"."""
    return f"cell {', cell '.join(cells)}"

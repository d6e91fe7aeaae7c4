"""Asking cells: which there are, all of them at once, and what is said of those that did not answer."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from berth.commands.terminal import CommandRefused
from berth.settings import BadSetting, Settings
from bus import topics
from bus.cells import FindCells
from bus.delivery.runner import Bus
from bus.errors import AnswerRefused, Unavailable, Unroutable

R = TypeVar("R")

SECONDS = 1.0  # placement may take; without it those of the settings have to do


async def known_cells(bus: Bus, settings: Settings) -> tuple[str, ...]:
    """Their names; those of the settings first. An embedded berth has no others."""
    if settings.embedded:
        return settings.cell_names
    try:
        found = await bus.asker(topics.CELLS, timeout=SECONDS)(FindCells(counted=False))
    except (Unavailable, Unroutable, AnswerRefused):
        return settings.cell_names
    return tuple(dict.fromkeys((*settings.cell_names, *(one.name for one in found.cells))))


async def chosen_cells(
    bus: Bus, settings: Settings, only: Sequence[str], option: str = "--cell"
) -> Sequence[str]:
    """Those that the option names, which must be known; where it names none, all that are."""
    cells = await known_cells(bus, settings)
    for one in only:
        if one not in cells:
            raise BadSetting(f"{option} {one!r}: cells are {', '.join(cells)}")
    return only or cells


async def check_to_cell(bus: Bus, settings: Settings, cell: str) -> None:
    """BadSetting, when something is to go to a cell that nobody knows. Empty: it stays in its own."""
    if cell:
        await chosen_cells(bus, settings, [cell], "--to-cell")


async def ask_cells(
    cells: Sequence[str], ask: Callable[[str], Awaitable[R]]
) -> tuple[dict[str, R], list[str]]:
    """All of them at once: what each answered, and those that did not answer."""

    async def one(cell: str) -> R | None:
        try:
            return await ask(cell)
        except (Unavailable, Unroutable):
            return None

    answers = await asyncio.gather(*(one(cell) for cell in cells))
    found = {cell: answer for cell, answer in zip(cells, answers, strict=True) if answer is not None}
    return found, [cell for cell in cells if cell not in found]


def all_shown(silent: Sequence[str]) -> None:
    """CommandRefused, when the rest has been shown and some cells were silent."""
    if silent:
        raise CommandRefused(f"not shown, for it did not answer: {named(silent)}")


def named(cells: Sequence[str]) -> str:
    return f"cell {', cell '.join(cells)}"

"""Which cells there are: those of the settings, and those that are registered besides."""

from berth.settings import Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.errors import AnswerRefused, Unavailable, Unroutable
from bus.queries import FindCells

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

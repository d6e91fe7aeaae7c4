"""Finds a build: every cell is queried, and the one that knows it returns its state."""

import uuid
from collections.abc import Sequence

from berth.commands.asking_cells import ask_cells, known_cells, named
from berth.commands.terminal import CommandRefused
from berth.settings import BadSetting, Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.queries import BuildStands, FindBuilds

SECONDS = 5.0  # for a cell's answer


def uuid_of(given: str, what: str = "a build") -> str:
    """Return the uuid in canonical form, or raise CommandRefused."""
    try:
        return str(uuid.UUID(given))
    except ValueError:
        raise BadSetting(f"{given!r} is not the uuid of {what}") from None


async def whereabouts(
    bus: Bus, settings: Settings, builds: Sequence[str], cell: str = ""
) -> dict[str, BuildStands]:
    """Return the state of each build, in the given order. Raise CommandRefused if no cell knows one."""
    cells = (cell,) if cell else await known_cells(bus, settings)
    find, wanted = bus.asker(topics.FIND_BUILDS, timeout=SECONDS), tuple(dict.fromkeys(builds))
    answers, silent = await ask_cells(cells, lambda each: find(FindBuilds(cell=each, builds=wanted)))
    found = {stands.build: stands for answer in answers.values() for stands in answer.builds}
    missing = [build for build in builds if build not in found]
    if missing:
        unheard = f"; did not answer: {named(silent)}" if silent else ""
        raise CommandRefused(f"no cell knows a build {', '.join(missing)}{unheard}")
    return {build: found[build] for build in builds}

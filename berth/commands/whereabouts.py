"""Where a build is: every cell is asked, and the one that knows it says how it stands."""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

from berth.commands.terminal import CommandRefused
from berth.known_cells import known_cells
from berth.settings import BadSetting, Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.errors import Unavailable, Unroutable
from bus.queries import BuildsFound, BuildStands, FindBuilds

SECONDS = 5.0  # a cell may take to say whether it has it


def uuid_of(given: str, what: str = "a build") -> str:
    """As everybody writes it, or a sentence about what was given."""
    try:
        return str(uuid.UUID(given))
    except ValueError:
        raise BadSetting(f"{given!r} is not the uuid of {what}") from None


async def whereabouts(
    bus: Bus, settings: Settings, builds: Sequence[str], cell: str = ""
) -> dict[str, BuildStands]:
    """How each of these stands, in the order given; CommandRefused where no cell knows one."""
    cells = (cell,) if cell else await known_cells(bus, settings)
    find = bus.asker(topics.FIND_BUILDS, timeout=SECONDS)
    questions = [find(FindBuilds(cell=each, builds=tuple(dict.fromkeys(builds)))) for each in cells]
    answers: Sequence[Any] = await asyncio.gather(*questions, return_exceptions=True)
    found: dict[str, BuildStands] = {}
    silent: list[str] = []
    for each, answer in zip(cells, answers, strict=True):
        if isinstance(answer, BuildsFound):
            found |= {stands.build: stands for stands in answer.builds}
        elif isinstance(answer, Unavailable | Unroutable):
            silent.append(each)
        else:
            raise answer
    missing = [build for build in builds if build not in found]
    if missing:
        unheard = f"; did not answer: cell {', cell '.join(silent)}" if silent else ""
        raise CommandRefused(f"no cell knows a build {', '.join(missing)}{unheard}")
    return {build: found[build] for build in builds}

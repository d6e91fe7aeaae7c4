"""Finds the builds and instances of cells."""

import uuid
from collections.abc import AsyncIterator, Sequence

from msgspec import structs

from berth.kit.cells import ask_cells, cells_text, known_cells
from berth.settings import BadSetting, Settings
from bus import topics
from bus.decisions import FindRefused, RefusedBuild
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.queries import BuildStands, FindBuilds, FindInstances, InstancesFound

BUILD_SECONDS = 5.0  # time limit for a cell's answer about builds


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
        no_answer = f"; did not answer: {cells_text(silent)}" if silent else ""
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


async def refused_builds(bus: Bus, question: FindRefused) -> list[RefusedBuild]:
    """Return the builds that ended without a host, from the schedulers' decisions."""
    ask, found = bus.asker(topics.REFUSED), list[RefusedBuild]()
    while True:
        page = await ask(question)
        found.extend(page.builds)
        if not page.last:
            return found
        question = structs.replace(question, after=page.last)

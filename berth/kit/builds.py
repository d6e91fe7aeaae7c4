"""Finds the builds and instances of cells."""

import re
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import get_args

from msgspec import structs

from berth.kit.cells import ask_cells, cells_text, known_cells
from berth.kit.short_ids import only_one
from berth.settings import BadSetting, Settings
from bus import topics
from bus.decisions import FindRefused, RefusedBuild
from bus.delivery.runner import Bus
from bus.errors import UNANSWERED, OperationRefused
from bus.queries import BuildStands, FindBuilds, FindInstances, FindWaiting, InstancesFound, InstanceStatus

BUILD_SECONDS = 5.0  # time limit for a cell's answer about builds

_STATUSES: tuple[InstanceStatus, ...] = get_args(InstanceStatus)


def uuid_of(given: str, what: str = "a build") -> str:
    """Return a uuid in lower case with dashes; raise BadSetting, which names `what`, for any other text."""
    try:
        return str(uuid.UUID(given))
    except ValueError:
        raise BadSetting(f"{given!r} is not the uuid of {what}") from None


_BEGINNING = re.compile(r"[0-9a-f]{8}[0-9a-f-]{0,27}")
_DASHES = (8, 12, 16, 20)  # numbers of hexadecimal digits before each dash of a uuid
_SHOWN = 10  # ids of each cell that begin alike


async def whole_id(bus: Bus, settings: Settings, given: str, what: str = "a build", cell: str = "") -> str:
    """Return the uuid of a build, or of a request or move while it waits, that is given whole or by at least
    its first 8 characters. Raise BadSetting for any other text, and OperationRefused if several ids begin so.
    """
    try:
        return str(uuid.UUID(given))
    except ValueError:
        pass
    begins = given.lower()
    if not _BEGINNING.fullmatch(begins):
        raise BadSetting(f"{given!r} is not the uuid of {what}, nor its first 8 or more characters")
    digits = begins.replace("-", "")
    begins = "".join(f"-{digit}" if at in _DASHES else digit for at, digit in enumerate(digits))
    cells = (cell,) if cell else await known_cells(bus, settings)
    ask = bus.asker(topics.FIND_INSTANCES, timeout=BUILD_SECONDS)
    # Pages of instances are sorted by id, so those that begin so are the first ones after this text.
    question = FindInstances(cell="any", statuses=_STATUSES, after=begins, limit=_SHOWN)
    answers, silent = await ask_cells(cells, lambda each: ask(structs.replace(question, cell=each)))
    known = {instance.build for answer in answers.values() for instance in answer.instances}
    found = only_one(known | await _waiting_ids(bus), begins, given)
    if not found:
        no_answer = f"; did not answer: {cells_text(silent)}" if silent else ""
        raise BadSetting(f"{given!r} is not the uuid of {what}, and no id begins so{no_answer}")
    return found


async def whole_ids(
    bus: Bus, settings: Settings, given: Sequence[str], what: str = "a build", cell: str = ""
) -> list[str]:
    """Return the uuids of builds, each given as for `whole_id`, without repetitions."""
    return [*dict.fromkeys([await whole_id(bus, settings, each, what, cell) for each in given])]


async def _waiting_ids(bus: Bus) -> set[str]:
    """Return the ids of requests and moves that wait for capacity, and of their builds."""
    ask, found, after = bus.asker(topics.WAITING, timeout=BUILD_SECONDS), set[str](), 0
    try:
        while True:
            page = await ask(FindWaiting(after=after, limit=500))
            found.update(*((each.request, *each.builds) for each in page.waiting))
            if page.more is None:
                return found
            after = page.more
    except UNANSWERED:
        return found


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

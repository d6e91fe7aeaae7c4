"""Queries to placement, schedulers and cells, with a time limit, whose replies name workers that do not
answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from bus import topics
from bus.cells import CellsFound, FindCells
from bus.clock import monotonic
from bus.delivery.runner import Bus
from bus.errors import AnswerRefused, NoAnswer, Unavailable, Undecodable, Unroutable
from bus.host_health import FindHostHealth, HostHealthFound
from bus.queries import FindInstances, FindWaiting, InstancesFound, WaitingFound
from control_room.core.now import ProcessReply
from control_room.shared_data import BackgroundTasks, SharedData

R = TypeVar("R")

SECONDS = 3.0  # for an answer that a page shows
LONG = 20.0  # for an answer that takes computation
NO_ANSWER = (Unavailable, Unroutable, AnswerRefused, Undecodable)  # what a query may raise


class Queries:
    """The queries of the pages, as functions that raise NO_ANSWER."""

    def __init__(self, bus: Bus) -> None:
        self.cells = bus.asker(topics.CELLS, SECONDS)
        self.providers = bus.asker(topics.PROVIDERS, LONG)
        self.trees = bus.asker(topics.TREES, LONG)
        self.changes = bus.asker(topics.CHANGES, LONG)
        self.aggregates = bus.asker(topics.AGGREGATES, LONG)
        self.waiting = bus.asker(topics.WAITING, SECONDS)
        self.decision = bus.asker(topics.DECISION, SECONDS)
        self.what_if = bus.asker(topics.WHAT_IF, LONG)
        self.health = bus.asker(topics.HOST_HEALTH, SECONDS)
        self.builds = bus.asker(topics.FIND_BUILDS, SECONDS)
        self.instances = bus.asker(topics.FIND_INSTANCES, SECONDS)
        self.moves = bus.asker(topics.FIND_MOVES, SECONDS)


@dataclass(frozen=True, slots=True)
class Reply(Generic[R]):
    """An answer, or the reason for its absence."""

    source: str  # the process that was asked, for people
    answer: R | None = None
    problem: str = ""
    seconds: float = 0.0


async def query(source: str, ask: Callable[[Any], Awaitable[R]], question: Any) -> Reply[R]:
    began = monotonic()
    answer, problem = None, ""
    try:
        answer = await ask(question)
    except NoAnswer:
        problem = "no answer in time"
    except Unroutable:
        problem = "no consumer; it is not running"
    except NO_ANSWER as error:
        problem = str(error)
    return Reply(source, answer, problem, monotonic() - began)


STATUS_SECONDS = 4.0  # that an answer about the cloud is used
COUNT_TIMES = 25.0  # placement's counts are used for so many times as long as counting took


@dataclass(frozen=True)
class CloudStatus:
    cells: Reply[CellsFound] = field(default_factory=lambda: Reply("placement"))
    counts: CellsFound | None = None  # of their hosts and instances
    waiting: Reply[WaitingFound] = field(default_factory=lambda: Reply("the scheduler"))
    building: dict[str, Reply[InstancesFound]] = field(default_factory=dict)  # by cell
    health: Reply[HostHealthFound] = field(default_factory=lambda: Reply("a scheduler"))

    @property
    def replies(self) -> list[ProcessReply]:
        every: Sequence[Reply[Any]] = [self.cells, self.waiting, *self.building.values()]
        return [ProcessReply(name=one.source, seconds=one.seconds, problem=one.problem) for one in every]


class StatusReader:
    def __init__(self, queries: Queries, tasks: BackgroundTasks, configured: Sequence[str]) -> None:
        """`configured` are the cells of the settings, asked even where placement does not answer."""
        self._queries = queries
        self._configured = tuple(configured)
        self._counts: CellsFound | None = None
        self._counting: SharedData[FindCells, Reply[CellsFound]] = SharedData(
            tasks, lambda find: query("placement", queries.cells, find), times=COUNT_TIMES
        )
        self._status = SharedData(tasks, self._read, seconds=STATUS_SECONDS)

    async def status(self) -> CloudStatus:
        return await self._status.get(None)

    async def cells(self) -> list[str]:
        return self.cell_names(await self.status())

    def cell_names(self, status: CloudStatus) -> list[str]:
        found, counts = status.cells.answer, status.counts
        known = [cell.name for cell in found.cells if not cell.gone] if found else []
        return list(dict.fromkeys((*known, *(counts.hosts if counts else ()), *self._configured)))

    async def _read(self, _: None) -> CloudStatus:
        ask = self._queries
        cells, waiting, health = await asyncio.gather(
            query("placement", ask.cells, FindCells(counted=False)),
            query("the scheduler", ask.waiting, FindWaiting(limit=1)),
            query("a scheduler", ask.health, FindHostHealth(limit=1, counted=True)),
        )
        counted = await self._counting.get(FindCells())
        self._counts = counted.answer or self._counts
        status = CloudStatus(cells=cells, waiting=waiting, counts=self._counts, health=health)
        names = self.cell_names(status)
        building = await asyncio.gather(*(self._building(name) for name in names))
        return replace(status, building=dict(zip(names, building, strict=True)))

    async def _building(self, cell: str) -> Reply[InstancesFound]:
        find = FindInstances(cell=cell, statuses=("building", "swapping"), limit=1, count=True)
        return await query(f"the conductor of cell {cell}", self._queries.instances, find)

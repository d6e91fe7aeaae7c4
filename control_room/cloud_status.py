"""Answers of placement, schedulers and cells about the cloud as a whole, read while pages are open."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bus.cells import CellsFound, FindCells
from bus.host_health import FindHostHealth, HostHealthFound
from bus.queries import FindInstances, FindWaiting, InstancesFound, WaitingFound
from control_room.core.now import ProcessReply
from control_room.queries import Queries, Reply, query
from control_room.shared_data import BackgroundTasks, SharedData

SECONDS = 4.0  # that an answer is used
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
        self._status = SharedData(tasks, self._read, seconds=SECONDS)

    async def status(self) -> CloudStatus:
        return await self._status.get(None)

    async def cells(self) -> list[str]:
        """Return the names of all cells."""
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

"""Questions that are repeated while pages are open, once for all pages. Without open pages nothing is
asked.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bus.cells import CellsFound, FindCells
from bus.clock import Clock
from bus.host_health import FindHostHealth, HostHealthFound
from bus.queries import FindInstances, FindWaiting, InstancesFound, WaitingFound
from control_room.core.alarms import Questioned
from control_room.periodic_queries import Glances
from control_room.queries import Reply, RoomQuestions, heard

SECONDS = 4.0  # an answer is good for
SELDOM = 25.0  # and what placement counts for so many times as long as it took to count

_COUNTED = FindCells()


@dataclass(frozen=True)
class Seen:
    """The last answer."""

    at: float = float("-inf")
    cells: Reply[CellsFound] = field(default_factory=lambda: Reply("placement"))
    counts: CellsFound | None = None  # of their hosts and instances
    waiting: Reply[WaitingFound] = field(default_factory=lambda: Reply("the scheduler"))
    building: dict[str, Reply[InstancesFound]] = field(default_factory=dict)  # by cell
    health: Reply[HostHealthFound] = field(default_factory=lambda: Reply("a scheduler"))

    @property
    def asked(self) -> list[Questioned]:
        every: Sequence[Reply[Any]] = [self.cells, self.waiting, *self.building.values()]
        return [Questioned(name=one.who, seconds=one.seconds, problem=one.problem) for one in every]


class Looking:
    def __init__(self, questions: RoomQuestions, clock: Clock, configured: Sequence[str]) -> None:
        """`configured` are the cells of the settings, asked even where placement does not answer."""
        self._questions = questions
        self._clock = clock
        self._configured = tuple(configured)
        self._asking = asyncio.Lock()
        self._seen = Seen()
        self._counts: CellsFound | None = None
        # Where there is much, placement is not kept at counting it.
        self._counting: Glances[FindCells, Reply[CellsFound]] = Glances(
            lambda question: heard("placement", questions.cells, question), clock, 0.0, SELDOM
        )

    async def seen(self) -> Seen:
        if self._clock.monotonic() - self._seen.at < SECONDS:
            return self._seen
        async with self._asking:
            if self._clock.monotonic() - self._seen.at >= SECONDS:
                self._seen = await self._look()
        return self._seen

    def cell_names(self, seen: Seen) -> list[str]:
        known = [cell.name for cell in seen.cells.answer.cells if not cell.gone] if seen.cells.answer else []
        return list(dict.fromkeys((*known, *(seen.counts.hosts if seen.counts else ()), *self._configured)))

    async def _look(self) -> Seen:
        ask = self._questions
        cells, waiting, health = await asyncio.gather(
            heard("placement", ask.cells, FindCells(counted=False)),
            heard("the scheduler", ask.waiting, FindWaiting(limit=1)),
            heard("a scheduler", ask.health, FindHostHealth(limit=1, counted=True)),
        )
        counted = await self._counting.at(_COUNTED)
        counts = self._counts = counted.answer or self._counts
        seen = Seen(cells=cells, waiting=waiting, counts=counts)
        names = self.cell_names(seen)
        question = [
            FindInstances(cell=name, statuses=("building", "swapping"), limit=1, count=True) for name in names
        ]
        found = await asyncio.gather(
            *(
                heard(f"the conductor of cell {instances.cell}", ask.instances, instances)
                for instances in question
            )
        )
        building = dict(zip(names, found, strict=True))
        return Seen(self._clock.monotonic(), cells, counts, waiting, building, health)

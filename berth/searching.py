"""Where a scheduler searches: placement's own memory where that is in its process, else a replica of it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from bus import topics
from bus.candidates import CandidateSource, Heard
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.worker import Worker
from placement_worker import IndexedSource, Memory, replica
from placement_worker.core.index import Index


class SharedMemory:
    """Placement's index for workers in the same process, which may start before placement."""

    def __init__(self) -> None:
        self._memory: Memory | None = None
        self._given = asyncio.Event()
        self._watchers: list[Heard] = []

    def give(self, memory: Memory) -> None:
        self._memory = memory
        for heard in self._watchers:
            memory.watch(heard)
        self._given.set()

    @property
    def index(self) -> Index:
        if self._memory is None or not self._memory.loads:
            raise Unavailable("placement has not read what there is yet")
        return self._memory.index

    def watch(self, heard: Heard) -> None:
        self._watchers.append(heard)
        if self._memory is not None:
            self._memory.watch(heard)

    async def loaded(self) -> None:
        await self._given.wait()
        assert self._memory is not None
        await self._memory.loaded()

    async def fresh(self) -> None:
        """Bring the index up to date with commits of other processes."""
        await self.loaded()
        assert self._memory is not None
        await self._memory.fresh()


class SearchPlace(NamedTuple):
    """The source of candidates for one scheduler, and the workers that maintain it."""

    source: CandidateSource
    loaded: Callable[[], Awaitable[None]]
    workers: Sequence[Worker]


def candidate_source(bus: Bus, shared: SharedMemory | None) -> SearchPlace:
    """`shared` is given where placement is served in this process: no second copy, and nothing is asked."""
    if shared is not None:
        return SearchPlace(IndexedSource(shared), shared.loaded, ())
    kept, worker = replica(
        bus.asker(topics.TREES),
        bus.asker(topics.CHANGES),
        bus.asker(topics.AGGREGATES),
        bus.asker(topics.CELLS),
        bus.clock,
    )
    return SearchPlace(IndexedSource(kept), kept.loaded, (worker,))

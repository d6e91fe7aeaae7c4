"""Gives a scheduler its candidates: from placement's index in the same process, or from a replica."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from bus import topics
from bus.candidates import CandidateSource, OnChange
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.worker import Worker
from placement_worker import BusReader, IndexedSource, Memory, replica
from placement_worker.core.index import Index
from scheduler_worker.dependencies import CellQueries, PlacementQueries

CELL_SECONDS = 5.0  # a scheduler waits for a cell's answer; moves of other cells wait, too


class SharedMemory:
    """Gives other workers of this process access to placement's index; they may start before placement."""

    def __init__(self) -> None:
        self._memory: Memory | None = None
        self._given = asyncio.Event()
        self._watchers: list[OnChange] = []

    def give(self, memory: Memory) -> None:
        self._memory = memory
        for on_change in self._watchers:
            memory.watch(on_change)
        self._given.set()

    @property
    def index(self) -> Index:
        if self._memory is None or not self._memory.loads:
            raise Unavailable("placement has not read what there is yet")
        return self._memory.index

    def watch(self, on_change: OnChange) -> None:
        self._watchers.append(on_change)
        if self._memory is not None:
            self._memory.watch(on_change)

    async def loaded(self) -> None:
        await self._given.wait()
        assert self._memory is not None
        await self._memory.loaded()

    async def fresh(self) -> None:
        """Update placement's index in this process with the commits of other processes."""
        await self.loaded()
        assert self._memory is not None
        await self._memory.fresh()


class SearchPlace(NamedTuple):
    """A scheduler's source of candidates, and the workers that keep it current."""

    source: CandidateSource
    loaded: Callable[[], Awaitable[None]]
    workers: Sequence[Worker]


def candidate_source(bus: Bus, shared: SharedMemory | None) -> SearchPlace:
    """Return a scheduler's source of candidates: placement's index in this process, or else a replica."""
    if shared is not None:
        return SearchPlace(IndexedSource(shared), shared.loaded, ())
    ask = bus.asker
    reader = BusReader(ask(topics.TREES), ask(topics.CHANGES), ask(topics.AGGREGATES), ask(topics.CELLS))
    index, worker = replica(reader, bus.clock)
    return SearchPlace(IndexedSource(index), index.loaded, (worker,))


def placement_queries(bus: Bus) -> PlacementQueries:
    return PlacementQueries(
        claim_many=bus.asker_of_many(topics.CLAIM),
        release=bus.asker(topics.RELEASE),
        providers=bus.asker(topics.PROVIDERS),
        groups=bus.asker(topics.GROUPS),
        allocations=bus.asker(topics.ALLOCATIONS),
        usages=bus.asker(topics.USAGES),
    )


def cell_queries(bus: Bus) -> CellQueries:
    return CellQueries(
        builds=bus.asker(topics.FIND_BUILDS, timeout=CELL_SECONDS),
        instances=bus.asker(topics.FIND_INSTANCES, timeout=CELL_SECONDS),
        moves=bus.asker(topics.FIND_MOVES, timeout=CELL_SECONDS),
    )

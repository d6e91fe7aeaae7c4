"""Runs candidate searches concurrently: a long search pauses after each time slice."""

import asyncio
from collections.abc import Callable, Generator
from typing import TypeVar

from bus.clock import Clock
from bus.queries import CandidatesFound, FindCandidates
from placement_worker.core.search import SearchResult, page_steps, search_steps
from placement_worker.core.snapshot import Snapshot
from placement_worker.index_updates import Memory

T = TypeVar("T")
Steps = Generator[None, None, T]

SLICE_SECONDS = 0.005  # for so long a search has the process to itself


class Searches:
    """A search that does not finish in one time slice continues after the slices of others.

    Claims and changes are applied in between; the search continues with the trees it began with.
    """

    def __init__(self, memory: Memory, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock
        self._turn = asyncio.Lock()  # first come, first served

    async def page(self, query: FindCandidates) -> CandidatesFound:
        """Return one page of the hosts that fit."""
        return await self._run(page_steps, query)

    async def fits(self, query: FindCandidates) -> SearchResult:
        """Return at most `limit` complete allocations; a host can have several."""
        return await self._run(search_steps, query)

    async def _run(self, begin: Callable[[Snapshot, FindCandidates], Steps[T]], query: FindCandidates) -> T:
        snapshot = Snapshot(self._memory.index)
        steps = begin(snapshot, query)
        done = self._slice(steps)
        if done is None:
            with snapshot.held():
                while done is None:
                    async with self._turn:
                        await asyncio.sleep(0)
                        done = self._slice(steps)
        return done[0]

    def _slice(self, steps: Steps[T]) -> tuple[T] | None:
        """Continue for one time slice; return the result once there is one."""
        until = self._clock.monotonic() + SLICE_SECONDS
        try:
            next(steps)
            while self._clock.monotonic() < until:
                next(steps)
        except StopIteration as end:
            return (end.value,)
        return None

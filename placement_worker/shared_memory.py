"""Placement's index for other workers of the same process."""

import asyncio

from bus.candidates import OnChange, OnQuotas
from bus.errors import Unavailable
from placement_worker.core.index import Index
from placement_worker.memory import Memory


class SharedMemory:
    """Gives other workers of this process access to placement's index; they may start before placement."""

    def __init__(self) -> None:
        self._memory: Memory | None = None
        self._given = asyncio.Event()
        self._watchers: list[OnChange] = []
        self._quota_watchers: list[OnQuotas] = []

    def give(self, memory: Memory) -> None:
        self._memory = memory
        for on_change in self._watchers:
            memory.watch(on_change)
        for on_quotas in self._quota_watchers:
            memory.watch_quotas(on_quotas)
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

    def watch_quotas(self, on_quotas: OnQuotas) -> None:
        self._quota_watchers.append(on_quotas)
        if self._memory is not None:
            self._memory.watch_quotas(on_quotas)

    async def loaded(self) -> None:
        await self._given.wait()
        assert self._memory is not None
        await self._memory.loaded()

    async def fresh(self) -> None:
        """Update placement's index in this process with the commits of other processes."""
        await self.loaded()
        assert self._memory is not None
        await self._memory.fresh()

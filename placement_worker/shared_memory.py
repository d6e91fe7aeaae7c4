"""Placement's index for other workers of the same process."""

import asyncio
from collections.abc import Callable

from bus.candidates import OnChange, OnWakes
from bus.errors import Unavailable
from placement_worker.core.index import Index
from placement_worker.memory import Memory


class SharedMemory:
    """Gives the other workers of this process access to placement's index. A worker may start before
    placement does.
    """

    def __init__(self) -> None:
        self._memory: Memory | None = None
        self._given = asyncio.Event()
        self._registrations: list[Callable[[Memory], None]] = []

    def give(self, memory: Memory) -> None:
        self._memory = memory
        for register in self._registrations:
            register(memory)
        self._given.set()

    @property
    def index(self) -> Index:
        if self._memory is None or not self._memory.loads:
            raise Unavailable("placement has not read what there is yet")
        return self._memory.index

    def watch(self, on_change: OnChange) -> None:
        self._register(lambda memory: memory.watch(on_change))

    def watch_wakes(self, on_wakes: OnWakes) -> None:
        self._register(lambda memory: memory.watch_wakes(on_wakes))

    def _register(self, register: Callable[[Memory], None]) -> None:
        self._registrations.append(register)
        if self._memory is not None:
            register(self._memory)

    async def loaded(self) -> None:
        await self._given.wait()
        assert self._memory is not None
        await self._memory.loaded()

    async def fresh(self) -> None:
        """Wait until placement's index in this process includes the earlier commits of all processes."""
        await self.loaded()
        assert self._memory is not None
        await self._memory.fresh()

"""The feed of placement's commits, in their order."""

import asyncio
from collections.abc import AsyncIterator

from bus.clock import set_within
from bus.http import LongRequests
from bus.replication import PlacementChanged
from placement_worker.extension import Memory

POLL_SECONDS = 1.0  # interval of checks for commits that the index did not report
STREAMS = 50  # streams of changes of one user at the same time


class ChangeFeed:
    """Reads placement's commits from the change log as soon as the index of this process has applied them."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._learned = asyncio.Event()  # set when the index changes, and then replaced
        self.streams = LongRequests(STREAMS, "streams of changes")  # in progress
        memory.watch(lambda roots, described: self._wake())
        memory.watch_wakes(lambda keys: self._wake())

    def _wake(self) -> None:
        self._learned.set()
        self._learned = asyncio.Event()

    async def newest(self) -> int:
        """Return the number of the newest commit."""
        await self._memory.fresh()
        return self._memory.index.seen

    async def follow(self, after: int, until: asyncio.Event | None = None) -> AsyncIterator[PlacementChanged]:
        """Yield every commit of placement after this change number, soon after it is committed. The generator
        ends within POLL_SECONDS after the event `until` is set. Raise Forgotten if a change is no longer
        stored, or a fail-over may have lost it.
        """
        page, _, history = await self._memory.changes_after(after, "")
        while until is None or not until.is_set():
            for message in page:
                yield message
                after = message.number
            learned = self._learned
            page, _, _ = await self._memory.changes_after(after, history)
            if not page:
                await set_within(learned, POLL_SECONDS)

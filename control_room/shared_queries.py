"""Asks once for all open pages: soon after a message about it, with a minimum interval."""

import asyncio
from collections.abc import Awaitable, Callable

from bus.clock import Clock
from control_room.page_refresh import Pace, Stirring
from control_room.periodic_queries import Glances, K, V

SPACED = 0.15  # seconds between two questions, whatever the open pages show


class SharedLooks(Glances[K, V]):
    """An answer that `news` may change. Without messages it is kept for some seconds."""

    def __init__(
        self, ask: Callable[[K], Awaitable[V]], clock: Clock, news: Stirring, seconds: float
    ) -> None:
        async def paced(question: K) -> V:
            with self.pace.asking():
                return await ask(question)

        super().__init__(paced, clock, seconds)
        self._stirring = news
        self._turn = asyncio.Lock()  # of the pages that are open
        self._next = float("-inf")  # when theirs may begin
        self.pace = Pace()

    async def at(self, question: K) -> V:
        """For a page that is loaded: as it was a moment ago, or as it is now."""
        known = self._known.get(question)
        if known is not None and self._clock.monotonic() - known.began < SPACED:
            return known.answer
        return await super().at(question)

    async def latest(self, question: K) -> V:
        """For a page that is open: with all news until now, when its turn has come."""
        if (known := self._fresh(question)) is not None:
            return known.answer
        async with self._turn:
            if (known := self._fresh(question)) is not None:
                return known.answer
            if (pause := self._next - self._clock.monotonic()) > 0:
                await asyncio.sleep(pause)
            self._next = self._clock.monotonic() + max(SPACED, self.pace.pause)
            return await super().at(question)

    def _news(self) -> int:
        return self._stirring.count

"""What open pages show is asked for once for all of them: as soon as there is news of it, and spaced."""

import asyncio
from collections.abc import Awaitable, Callable

from bus.clock import Clock
from control_room.glances import Glances, K, V
from control_room.stirring import Pace, Stirring

SPACED = 0.15  # seconds from one look of open pages to the next, whatever each of them shows


class SharedLooks(Glances[K, V]):
    """By `news` what was seen may be otherwise; where nothing is heard, it is good for some seconds."""

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

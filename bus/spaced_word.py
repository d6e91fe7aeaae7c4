"""A word to whoever shows things: said as soon as there is something to say, and not too often."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from bus.errors import Unavailable

log = logging.getLogger(__name__)

SOONEST = 0.1  # seconds between two of them


class SpacedWord:
    """Ten times a second at most. Where the bus is away it is not said: only what may be missed goes so."""

    def __init__(self, say: Callable[[], Awaitable[None]], what: str) -> None:
        self._say = say
        self._what = what
        self._due = asyncio.Event()

    def due(self) -> None:
        self._due.set()

    async def run(self) -> None:
        """As long as the worker lives."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self._say()
            except Unavailable as away:
                log.debug("%s is not told: %s", self._what, away)
            await asyncio.sleep(SOONEST)

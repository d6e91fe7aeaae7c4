"""Rate-limited publishing of messages that only refresh pages."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from bus.errors import Unavailable

log = logging.getLogger(__name__)

SOONEST = 0.1  # seconds between two messages


class RateLimitedPublisher:
    """Publishes at most ten times a second. While the bus is unreachable, the message is dropped."""

    def __init__(self, say: Callable[[], Awaitable[None]], what: str) -> None:
        self._say = say
        self._what = what
        self._due = asyncio.Event()

    def due(self) -> None:
        self._due.set()

    async def run(self) -> None:
        """Publish whenever `due` was called, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self._say()
            except Unavailable as away:
                log.debug("%s was not published: %s", self._what, away)
            await asyncio.sleep(SOONEST)

"""Growing pauses between retries."""

import asyncio

from bus.clock import Clock

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0


class Backoff:
    """Pauses that grow from 0.1 s to 5 s, each shortened at random so that clients do not retry in step."""

    def __init__(self, clock: Clock) -> None:
        self._chance = clock.chance
        self._next = _FIRST_PAUSE

    async def pause(self) -> None:
        await asyncio.sleep(self._next * (0.5 + self._chance.random() / 2))
        self._next = min(self._next * 2, _LONGEST_PAUSE)

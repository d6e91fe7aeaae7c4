"""Runs a timer of a worker's table: calls its handler repeatedly, and publishes the messages that it
returns.
"""

import asyncio
import logging
from collections.abc import Sequence

from bus.delivery.emitting import Emit, Emitter
from bus.errors import Unavailable, Unroutable
from bus.worker import Every, messages_of

log = logging.getLogger(__name__)

MAX_UNHEARD = 60  # repetitions of messages without a consumer
_PAUSES = (0.05, 0.1, 0.2, 0.5)  # seconds between repetitions; the last value repeats
_LONGEST_PAUSE = 1.0


class Timer:
    def __init__(self, row: Every, emitter: Emitter) -> None:
        self._row = row
        self._emitter = emitter

    async def run(self) -> None:
        """Run until cancelled. A failure of the handler is logged; the next turn repeats the work."""
        if not self._row.at_once:
            await asyncio.sleep(self._row.seconds)
        while True:
            try:
                made = messages_of(await self._row.handler())
                await self._publish_all([(None, message) for message in made])
            except Unavailable as condition:
                log.warning("%s: %s", self._emitter.worker, condition)
            except Exception:
                log.exception("%s: a timer failed; it goes on", self._emitter.worker)
            await asyncio.sleep(self._row.seconds)

    async def _publish_all(self, made: Sequence[Emit]) -> None:
        """Publish the messages until they have consumers, because no redelivery would repeat them.

        After a minute without a consumer they are left to the timer's next calls.
        """
        pauses = iter(_PAUSES)
        unheard = 0
        while unheard < MAX_UNHEARD:
            try:
                await self._emitter.emit(made, self._row.emits)
                return
            except Unavailable as condition:
                log.info("%s: %s; trying again", self._emitter.worker, condition)
            except Unroutable as nobody:
                log.info("%s: %s; trying again", self._emitter.worker, nobody)
                made, unheard = await self._publish_singly(made), unheard + 1
            await asyncio.sleep(next(pauses, _LONGEST_PAUSE))
        log.warning("%s: %d messages of a timer were heard by nobody", self._emitter.worker, len(made))

    async def _publish_singly(self, made: Sequence[Emit]) -> Sequence[Emit]:
        """Publish each message singly; return those without a consumer."""
        left = []
        for one in made:
            try:
                await self._emitter.emit([one], self._row.emits)
            except (Unavailable, Unroutable):
                left.append(one)
        return left

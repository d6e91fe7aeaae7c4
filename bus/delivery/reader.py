"""Takes deliveries off one queue, as many together as its row wants, and has them handled in tasks."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from bus.clock import Clock
from bus.delivery.settling import HANDLING_SECONDS, ServedRow
from bus.protocol import Delivery, Inbox

log = logging.getLogger(__name__)

MAX_PREFETCH = 20_000
UNSETTLED_PAUSE = 0.2  # seconds before the same is tried with a transport that has just failed


class QueueReader:
    def __init__(self, served: ServedRow, clock: Clock) -> None:
        self.served = served
        row = served.row
        self.prefetch = min((row.batch or 1) * row.concurrency * 2, MAX_PREFETCH)
        self._most = row.batch or 1
        self._linger = row.linger
        self._clock = clock
        self._seconds = HANDLING_SECONDS.labels(*served.labels)
        self._busy: dict[asyncio.Task[None], None] = {}  # in the order they began, so that a story replays
        self._slots = asyncio.Semaphore(row.concurrency)
        self._company = 1.0  # how many came together of late
        self._group: asyncio.TaskGroup
        self._inbox: Inbox
        self._loop: asyncio.Task[None]

    def start(self, inbox: Inbox, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._inbox = inbox
        self._loop = group.create_task(self._read())

    async def stop(self) -> None:
        """Consume no more; messages in hand are completed."""
        self._loop.cancel()
        with suppress(asyncio.CancelledError):
            await self._loop
        await self._inbox.stop()

    async def drained(self, seconds: float) -> None:
        """Wait so long for what is in hand; what is late is put back."""
        if self._busy:
            _, late = await asyncio.wait(self._busy, timeout=seconds)
            for task in [one for one in self._busy if one in late]:
                task.cancel()

    async def _read(self) -> None:
        while True:
            await self._slots.acquire()
            try:
                deliveries = await self._next()
            except BaseException:
                self._slots.release()
                raise
            self._company += (len(deliveries) - self._company) / 4
            task = self._group.create_task(self._handle(deliveries))
            self._busy[task] = None
            task.add_done_callback(self._finished)

    async def _next(self) -> list[Delivery]:
        """Wait for a delivery; return it with the deliveries that are queued after it."""
        deliveries = [await self._inbox.get()]
        if self._linger and self._company > 1.5:
            try:
                await asyncio.sleep(self._linger)
            except asyncio.CancelledError:
                deliveries[0].requeue()
                raise
        while len(deliveries) < self._most:
            more = self._inbox.get_nowait()
            if more is None:
                break
            deliveries.append(more)
        return deliveries

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._busy.pop(task, None)
        self._slots.release()

    async def _handle(self, deliveries: Sequence[Delivery]) -> None:
        started = self._clock.monotonic()
        try:
            await self.served.handle(deliveries)
        except asyncio.CancelledError:
            for delivery in deliveries:
                delivery.requeue()  # no effect on settled ones
            raise
        except Exception:  # the transport itself failed us: leave the messages to the broker
            log.exception("%s: could not settle", self.served.queue.name)
            try:
                await asyncio.sleep(UNSETTLED_PAUSE)
            finally:
                for delivery in deliveries:
                    delivery.requeue()
        self._seconds.observe(self._clock.monotonic() - started)

"""Reads the queue of one row of a worker's table, and handles its messages concurrently."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from weakref import WeakKeyDictionary

from bus.clock import Clock
from bus.delivery.settling import HANDLING_SECONDS, Readable, ServedRow
from bus.protocol import Delivery, Inbox, Intake
from bus.worker import On

Work = Callable[[], Awaitable[None]]
MAX_PREFETCH = 20_000
SLOW_CALLS = 8  # maximum number of concurrent handler calls with slow messages (see `on_many`)
UNSETTLED_PAUSE = 0.2  # seconds until messages are requeued after the connection to the broker failed


log = logging.getLogger(__name__)

# the queue readers of this process, oldest first, for the diagnosis of stuck processes
READERS: WeakKeyDictionary["QueueReader", None] = WeakKeyDictionary()


class QueueReader:
    """Reads one queue: collects messages in lists, and calls the handler with several lists concurrently."""

    def __init__(self, served: ServedRow, clock: Clock) -> None:
        self.served = served
        row = served.row
        prefetch = row.prefetch if isinstance(row, On) else 0
        self._intake = row.intake if isinstance(row, On) else None
        self._is_slow = row.slow if isinstance(row, On) else None
        self.prefetch = min(prefetch or (row.batch or 1) * row.concurrency * 2, MAX_PREFETCH)
        self.concurrency = row.concurrency
        self.taken = 0  # number of messages received from the queue
        self._most = row.batch or 1
        self._linger = row.linger
        self._clock = clock
        self._seconds = HANDLING_SECONDS.labels(*served.labels)
        # Running handler calls with start times and messages; an ordered dict: simulations are reproducible.
        self._busy: dict[asyncio.Task[None], tuple[float, list[Delivery]]] = {}
        self._slots = asyncio.Semaphore(row.concurrency)
        self._slow_slots = asyncio.Semaphore(SLOW_CALLS)
        self._batch_average = 1.0  # average number of messages in recent batches
        self._lingering: list[Delivery] = []  # received messages of a list that still waits for further ones
        self._group: asyncio.TaskGroup
        self._inbox: Inbox
        self._loop: asyncio.Task[None]

    def start(self, inbox: Inbox, group: asyncio.TaskGroup) -> None:
        """Begin to take messages from the inbox, in a task of the group."""
        self._group = group
        self._inbox = inbox
        self._loop = group.create_task(self._read())
        READERS[self] = None

    @property
    def name(self) -> str:
        return self.served.queue.name

    @property
    def buffered(self) -> int:
        """Return how many messages were received from the broker and are not being handled yet."""
        return self._inbox.buffered

    @property
    def calls(self) -> Sequence[tuple[float, Sequence[Delivery]]]:
        """Return the running handler calls: for each its monotonic start time and its messages."""
        return tuple([call for call in self._busy.values() if call[1]])

    def take_no_more(self) -> None:
        """Stop calling the handler with further messages; running calls continue."""
        self._loop.cancel()

    async def stop(self) -> None:
        """Stop reading the queue; messages being handled are still completed."""
        self.take_no_more()
        with suppress(asyncio.CancelledError):
            await self._loop
        await self._inbox.stop()
        for delivery in self._lingering:
            delivery.requeue()

    async def drained(self, seconds: float) -> None:
        """Wait at most `seconds` until running handlers end; cancel the rest and requeue their messages."""
        READERS.pop(self, None)
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while self._busy and (left := until - clock()) > 0:
            await asyncio.wait(self._busy, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        for task in [*self._busy]:
            task.cancel()

    async def _read(self) -> None:
        while True:
            await self._slots.acquire()
            try:
                deliveries = await self._next()
            except BaseException:
                self._slots.release()
                raise
            self._batch_average += (len(deliveries) - self._batch_average) / 4
            self.taken += len(deliveries)
            task = self._call(deliveries, partial(self._handle_list, deliveries), self._intake)
            task.add_done_callback(lambda _: self._slots.release())

    def _call(self, deliveries: list[Delivery], work: Work, intake: Intake | None) -> asyncio.Task[None]:
        task = self._group.create_task(self._handle(deliveries, work, intake))
        self._busy[task] = self._clock.monotonic(), deliveries
        task.add_done_callback(self._busy.pop)
        return task

    async def _next(self) -> list[Delivery]:
        first = self._inbox.get_nowait() if self._linger else None
        if first is None:
            first = await self._inbox.get()
        elif self._batch_average > 1.5:  # messages arrive faster than their lists are handled
            self._lingering.append(first)
            await asyncio.sleep(self._linger)
            self._lingering.clear()
        return [first, *islice(iter(self._inbox.get_nowait, None), self._most - 1)]

    async def _handle_list(self, deliveries: list[Delivery]) -> None:
        readable = await self.served.decode(deliveries)
        if self._is_slow is not None and (slow := [each for each in readable if self._is_slow(each[1])]):
            readable = [each for each in readable if not self._is_slow(each[1])]
            deliveries[:] = [delivery for delivery, _ in readable]  # `_handle_slow` settles the slow messages
            apart = [delivery for delivery, _ in slow]
            self._call(apart, partial(self._handle_slow, slow), self._intake)
        if readable:
            await self._handle_readable(readable)

    async def _handle_slow(self, slow: Readable) -> None:
        async with self._slow_slots:
            await self._handle_readable(slow)

    async def _handle_readable(self, readable: Readable) -> None:
        """Handle messages, as the last step of a call. Those whose results for clients are not confirmed yet
        are settled in further tasks, for which this call and the next one do not wait.
        """
        for unsettled in await self.served.handle(readable, self._group.create_task):
            self._call([*unsettled.deliveries], unsettled.settle, None)

    async def _handle(self, deliveries: Sequence[Delivery], work: Work, intake: Intake | None) -> None:
        """Do the work with messages, and report to the intake, if there is one, that the call has ended."""
        started = self._clock.monotonic()
        try:
            await work()
        except asyncio.CancelledError:
            for delivery in deliveries:
                delivery.requeue()  # no effect on settled messages
            raise
        except Exception:  # not from the handler: the connection to the broker failed
            log.exception("%s: could not settle", self.served.queue.name)
            try:
                await asyncio.sleep(UNSETTLED_PAUSE)
            finally:
                for delivery in deliveries:
                    delivery.requeue()
        finally:
            if intake is not None:
                intake.handled(deliveries)
        self._seconds.observe(self._clock.monotonic() - started)

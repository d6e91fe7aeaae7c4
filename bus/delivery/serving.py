"""Runs one worker from start to stop: declares its queues, handles their messages and its timers, and at
the stop completes the messages in progress.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

from bus.clock import Clock
from bus.delivery.settling import (
    HANDLING_SECONDS,
    AnsweredRow,
    ConsumedRow,
    Emit,
    Emitter,
    Readable,
    ServedRow,
)
from bus.delivery.suspects import Process, Suspects
from bus.errors import Unavailable, Unroutable
from bus.protocol import Delivery, Inbox
from bus.worker import Answers, Every, Narrow, On, Worker, messages_of, query_queue

Work = Callable[[], Awaitable[None]]
MAX_PREFETCH = 20_000
SLOW_CALLS = 8  # maximum number of concurrent handler calls with slow messages (see `on_many`)
UNSETTLED_PAUSE = 0.2  # seconds until messages are requeued after the connection to the broker failed


# the queue readers of this process, oldest first, for the diagnosis of stuck processes
READERS: WeakKeyDictionary["QueueReader", None] = WeakKeyDictionary()


class QueueReader:
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
            task = self._call(deliveries, partial(self._handle_list, deliveries))
            task.add_done_callback(lambda _: self._slots.release())

    def _call(self, deliveries: list[Delivery], work: Work) -> asyncio.Task[None]:
        task = self._group.create_task(self._handle(deliveries, work))
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
            self._call([delivery for delivery, _ in slow], partial(self._handle_slow, slow))
        if readable:
            await self.served.handle(readable)

    async def _handle_slow(self, slow: Readable) -> None:
        async with self._slow_slots:
            await self.served.handle(slow)

    async def _handle(self, deliveries: Sequence[Delivery], work: Work) -> None:
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
            if self._intake is not None:
                self._intake.handled(deliveries)
        self._seconds.observe(self._clock.monotonic() - started)


MAX_UNDELIVERABLE = 60  # repetitions of messages without a consumer
_PAUSES = (0.05, 0.1, 0.2, 0.5)  # seconds between repetitions; the last value repeats
_LONGEST_PAUSE = 1.0


@dataclass(eq=False)
class Timer:
    _row: Every
    _emitter: Emitter

    async def run(self) -> None:
        """Periodically call a timer's handler and publish its messages until cancelled; log exceptions."""
        if not self._row.at_once:
            await asyncio.sleep(self._row.seconds)
        while True:
            try:
                made = messages_of(await self._row.handler())
                if made:
                    await self._publish_all([(None, message) for message in made])
            except Unavailable as condition:
                log.warning("%s: %s", self._emitter.worker, condition)
            except Exception:
                log.exception("%s: a timer failed and continues", self._emitter.worker)
            await asyncio.sleep(self._row.seconds)

    async def _publish_all(self, made: Sequence[Emit]) -> None:
        """Publish the messages of a timer; if they have no consumer, retry for a minute, then drop them.

        Dropped messages are lost, unless the timer's next call returns them again.
        """
        pauses = iter(_PAUSES)
        unheard = 0
        while unheard < MAX_UNDELIVERABLE:
            try:
                await self._emitter.emit(made, self._row.emits)
                return
            except Unavailable as condition:
                log.info("%s: %s; trying again", self._emitter.worker, condition)
            except Unroutable as unroutable:
                log.info("%s: %s; trying again", self._emitter.worker, unroutable)
                made, unheard = await self._publish_singly(made), unheard + 1
            await asyncio.sleep(next(pauses, _LONGEST_PAUSE))
        log.warning("%s: %d messages of a timer had no consumer", self._emitter.worker, len(made))

    async def _publish_singly(self, made: Sequence[Emit]) -> Sequence[Emit]:
        left = []
        for emit in made:
            try:
                await self._emitter.emit([emit], self._row.emits)
            except (Unavailable, Unroutable):
                left.append(emit)
        return left


log = logging.getLogger(__name__)


async def serve(worker: Worker, process: Process) -> None:
    """Run a worker until its process has to stop, and then complete the messages in progress."""
    serving = _Serving(worker, process)
    if not await _run_unless_stopped(process.stopping, serving.declare()):
        log.info("%s: stopped before it had started", worker.name)
        return
    async with asyncio.TaskGroup() as group:
        await serving.run(group)
    for stop in worker.stops:
        await stop()
    log.info("%s: stopped", worker.name)


class _Serving:
    _group: asyncio.TaskGroup

    def __init__(self, worker: Worker, process: Process) -> None:
        self._worker = worker
        self._process = process
        self._suspects = Suspects(worker.name, process)
        self._emitter = Emitter(worker.name, process)
        self._rows = [*map(self._served, worker.consumes), *map(self._served, worker.answers)]
        self._redelivers = bool(worker.widens) or any(row.queue.durable for row in self._rows)
        self._readers: dict[QueueReader, None] = {}

    def _served(self, row: On | Answers) -> ServedRow:
        if isinstance(row, On):
            return ConsumedRow(row, self._worker, self._process, self._suspects)
        return AnsweredRow(row, self._worker, self._process, self._suspects)

    async def declare(self) -> None:
        await self._process.transport.declare(
            *(row.queue for row in self._rows),
            *((self._suspects.queue,) if self._redelivers else ()),
            *(query_queue(query.name) for query in self._worker.asks if not query.narrowed),
        )
        for start in self._worker.starts:
            await start()

    async def run(self, group: asyncio.TaskGroup) -> None:
        """Read the worker's queues and run its timers until it must stop; complete messages in progress."""
        self._group = group
        name, stopping = self._worker.name, self._process.stopping
        background = [group.create_task(run()) for run in self._worker.runs]
        background += [group.create_task(Timer(row, self._emitter).run()) for row in self._worker.timers]
        widening = []
        if await _run_unless_stopped(stopping, self._read(self._rows)):
            log.info("%s: serving", name)
            if self._redelivers:
                self._suspects.start(group)
            widening = [group.create_task(grow(self._widen)) for grow in self._worker.widens]
        await stopping.wait()
        log.info("%s: draining", name)
        for reader in self._readers:
            reader.take_no_more()
        for task in widening:
            task.cancel()
        await asyncio.gather(*widening, return_exceptions=True)
        await asyncio.gather(self._end(list(self._readers)), self._suspects.stop(self._process.drain))
        for task in background:
            task.cancel()

    async def _read(self, rows: Sequence[ServedRow]) -> list[QueueReader]:
        """Begin to read the queues of the given rows of the worker's table, all in parallel.

        For each queue the broker needs several requests, so one queue after the other would be slow.
        """
        readers = [QueueReader(row, self._process.clock) for row in rows]

        async def begin(reader: QueueReader) -> None:
            row, queue = reader.served.row, reader.served.queue
            inbox = await self._process.transport.consume(queue, reader.prefetch)
            if isinstance(row, On) and row.intake is not None:
                await row.intake.open(inbox)
                inbox = row.intake
            reader.start(inbox, self._group)
            self._readers[reader] = None
            self._suspects.rows[reader.served.queue.name] = reader.served

        await asyncio.gather(*map(begin, readers))
        return readers

    async def _widen(self, more: Sequence[On | Answers]) -> Narrow:
        rows = [self._served(row) for row in more]
        await self._process.transport.declare(*(row.queue for row in rows))
        readers = await self._read(rows)

        async def narrow() -> None:
            for reader in readers:
                self._readers.pop(reader, None)
                self._suspects.rows.pop(reader.served.queue.name, None)
            ending = self._group.create_task(self._end(readers))
            await asyncio.shield(ending)  # complete even if this task is cancelled

        return narrow

    async def _end(self, readers: Collection[QueueReader]) -> None:
        """Stop the queue readers: start no further handler calls; wait a limited time for running calls."""

        for reader in readers:
            reader.take_no_more()

        async def end(reader: QueueReader) -> None:
            await reader.stop()
            await reader.drained(self._process.drain)

        await asyncio.gather(*map(end, readers))


async def _run_unless_stopped(stopping: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Run a coroutine and return True; if `stopping` is set first, cancel it and return False."""

    async def outcome() -> Exception | None:
        try:
            await work
        except Exception as problem:  # raised outside of the task group, which would wrap it in a group
            return problem
        return None

    async with asyncio.TaskGroup() as group:
        working = group.create_task(outcome())
        stopped = group.create_task(stopping.wait())
        await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        working.cancel()
    if working.cancelled():
        return False
    problem = working.result()
    if problem is not None:
        raise problem
    return True

"""Runs one worker from start to stop: declares its queues, handles their messages and its timers, and
at the stop completes the messages in progress.
"""

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from bus.delivery.process import Process
from bus.delivery.queue_reader import QueueReader, log
from bus.delivery.settling import AnsweredRow, ConsumedRow, Emit, Emitter, ServedRow
from bus.delivery.suspects import Suspects
from bus.errors import Unavailable, Unroutable
from bus.worker import Answers, Every, Narrow, On, Worker, messages_of, query_queue

MAX_UNDELIVERABLE = 60  # repetitions of messages without a consumer
_PAUSES = (0.05, 0.1, 0.2, 0.5)  # seconds between repetitions; the last value repeats
_LONGEST_PAUSE = 1.0


@dataclass(eq=False)
class Timer:
    """Calls the handler of one periodic row of a worker's table, and publishes what it returns."""

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
        failures = 0
        while failures < MAX_UNDELIVERABLE:
            try:
                await self._emitter.emit(made, self._row.emits)
                return
            except Unavailable as condition:
                log.info("%s: %s; trying again", self._emitter.worker, condition)
            except Unroutable as unroutable:
                log.info("%s: %s; trying again", self._emitter.worker, unroutable)
                made, failures = await self._publish_singly(made), failures + 1
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

"""Serves one worker's table, from its start to its end: declares and reads queues, runs timers, drains."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from bus.clock import Clock
from bus.delivery.answering import AnsweredRow
from bus.delivery.consuming import ConsumedRow
from bus.delivery.emitting import Emitter
from bus.delivery.reader import QueueReader
from bus.delivery.settling import ServedRow
from bus.delivery.suspects import Suspects
from bus.delivery.timers import Timer
from bus.protocol import Transport
from bus.worker import Answers, Narrow, On, Worker, query_queue

log = logging.getLogger(__name__)


async def serve(
    worker: Worker,
    transport: Transport,
    clock: Clock,
    replica: str,
    stopping: asyncio.Event,
    drain: float,
    turns: asyncio.Lock,
) -> None:
    """Serve until `stopping` is set; then messages in hand have `drain` seconds to finish.

    `turns` is held by the worker of this process that handles suspects.
    """
    suspects = Suspects(worker.name, transport, clock, turns)
    emitter = Emitter(worker.name, transport, clock)

    def served(row: On | Answers) -> ServedRow:
        if isinstance(row, On):
            return ConsumedRow(row, worker, replica, transport, clock, suspects, emitter)
        return AnsweredRow(row, worker, replica, transport, clock, suspects)

    rows = [*map(served, worker.consumes), *map(served, worker.answers)]
    redelivers = bool(worker.widens) or any(row.queue.durable for row in rows)

    async def start() -> None:
        await transport.declare(
            *(row.queue for row in rows),
            *((suspects.queue,) if redelivers else ()),
            *(query_queue(query.name) for query in worker.asks if not query.narrowed),
        )
        for each in worker.starts:
            await each()

    if not await _run_unless_stopped(stopping, start()):
        log.info("%s: stopped before it had started", worker.name)
        return
    readers: dict[QueueReader, None] = {}
    async with asyncio.TaskGroup() as group:

        async def begin(rows: Sequence[ServedRow]) -> list[QueueReader]:
            begun = [QueueReader(row, clock) for row in rows]
            for reader in begun:
                reader.start(await transport.consume(reader.served.queue, reader.prefetch), group)
                readers[reader] = None
                suspects.rows[reader.served.queue.name] = reader.served
            return begun

        async def widen(more: Sequence[On | Answers]) -> Narrow:
            rows = [served(row) for row in more]
            await transport.declare(*(row.queue for row in rows))
            begun = await begin(rows)

            async def narrow() -> None:
                for reader in begun:
                    readers.pop(reader, None)
                    suspects.rows.pop(reader.served.queue.name, None)
                await asyncio.shield(group.create_task(end(begun)))  # also when we are stopped meanwhile

            return narrow

        async def end(ending: Iterable[QueueReader]) -> None:
            for reader in ending:
                await reader.stop()
            await asyncio.gather(*(reader.drained(drain) for reader in ending))

        background = [group.create_task(run()) for run in worker.runs]
        background += [group.create_task(Timer(row, emitter).run()) for row in worker.timers]
        widening = []
        if await _run_unless_stopped(stopping, begin(rows)):
            log.info("%s: serving", worker.name)
            if redelivers:
                suspects.start(group)
            widening = [group.create_task(grow(widen)) for grow in worker.widens]
        await stopping.wait()
        log.info("%s: draining", worker.name)
        for task in widening:
            task.cancel()
        await asyncio.gather(*widening, return_exceptions=True)
        await asyncio.gather(end(list(readers)), suspects.stop(drain))
        for task in background:
            task.cancel()
    for stop in worker.stops:
        await stop()
    log.info("%s: stopped", worker.name)


async def _run_unless_stopped(stopping: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Run the work; return False if stopped first, because waiting for a broker need not end."""

    async def outcome() -> Exception | None:
        try:
            await work
        except Exception as problem:  # raised again outside of the group, as it is
            return problem
        return None

    async with asyncio.TaskGroup() as group:
        working = group.create_task(outcome())
        told = group.create_task(stopping.wait())
        await asyncio.wait((working, told), return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        working.cancel()
    if working.cancelled():
        return False
    problem = working.result()
    if problem is not None:
        raise problem
    return True

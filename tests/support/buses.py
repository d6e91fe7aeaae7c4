"""Workers at work on a bus, whichever broker it has."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bus.delivery.runner import Bus
from bus.protocol import Transport
from bus.worker import Worker

Connect = Callable[[], Transport]  # one more connection to the same broker


@asynccontextmanager
async def serving(connect: Connect, *workers: Worker) -> AsyncIterator[Bus]:
    """These workers, at work until the block ends; asks of theirs go through the bus it gives."""
    stopping = asyncio.Event()
    async with Bus(connect()) as bus, asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(bus.serve(worker, stopping, drain=5))
            for row in (*worker.consumes, *worker.answers):
                await bus.transport.declare(worker.queue_of(row, bus.replica))
        try:
            yield bus
        finally:
            stopping.set()

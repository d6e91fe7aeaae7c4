"""Runs workers on a bus with any type of broker."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from bus.delivery.recording import RecordingBus
from bus.protocol import QueueSpec, Transport
from bus.worker import Worker

Connect = Callable[[], Transport]  # one more connection to the same broker

LOCALLY = pytest.mark.parametrize("connect", ["local"], indirect=True)


def queues_of(worker: Worker, replica: str = "") -> list[QueueSpec]:
    events = [worker.queue_of(row, replica) for row in worker.consumes]
    return events + [worker.queue_of(row, replica) for row in worker.answers]


@asynccontextmanager
async def serving(connect: Connect, *workers: Worker) -> AsyncIterator[RecordingBus]:
    stopping = asyncio.Event()
    async with RecordingBus(connect()) as bus, asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(bus.serve(worker, stopping, drain=5))
            await bus.transport.declare(*queues_of(worker, bus.replica))
        try:
            yield bus
        finally:
            stopping.set()

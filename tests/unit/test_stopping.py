"""A worker that is stopped: reads no queue any more, completes what it can in time, and returns the rest."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence

from bus import topics
from bus.clock import Clock, monotonic
from bus.context import envelope_of
from bus.delivery.process import Process
from bus.delivery.runner import Bus
from bus.delivery.suspects import Suspects
from bus.local import LocalBroker, LocalTransport
from bus.local.broker import LocalQueue, QueuedItem
from bus.messages import BuildCancelRequested, BuildDeleteRequested
from bus.protocol import Inbox, QueueSpec
from bus.worker import Worker, on, on_many
from tests.support.berth_processes import ROOT
from tests.support.ids import uid
from tests.support.waiting import in_time, until

QUEUE = QueueSpec("scheduler:build.cancel", ("build.cancel",))


def cancel(number: int) -> BuildCancelRequested:
    return BuildCancelRequested(build=uid(number), reply_to="client")


async def ignore(message: BuildCancelRequested | BuildDeleteRequested) -> None:
    pass


async def test_a_stopping_worker_returns_messages_that_take_longer_than_a_second() -> None:
    started, stopping = list[str](), asyncio.Event()
    broker = LocalBroker()

    async def handle(message: BuildCancelRequested) -> None:
        started.append(message.build)
        await asyncio.Event().wait()

    worker = Worker("scheduler", consumes=[on(topics.BUILD_CANCEL, handle, concurrency=2)])
    async with Bus(LocalTransport(broker)) as bus, asyncio.TaskGroup() as group:
        serving = group.create_task(bus.serve(worker, stopping))
        await until(lambda: QUEUE.name in broker.queues)
        await bus.publish(*(cancel(number) for number in range(5)))
        await until(lambda: len(started) == 2)
        stopping.set()
        since = monotonic()
        await in_time(serving)
    assert monotonic() - since < 5.0  # 1 s, on a busy machine
    assert len(started) == 2
    items = broker.queues[QUEUE.name].items
    assert {item.envelope.id for item in items} and len(items) == 5
    assert {item.crashes for item in items} == {0}


class BrokerThatNotes(LocalBroker):
    """Notes in which order readers are stopped and messages are requeued."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def back(self, queue: LocalQueue, item: QueuedItem) -> None:
        self.notes.append("requeued")
        super().back(queue, item)


class TransportThatNotes(LocalTransport):
    async def consume(self, queue: QueueSpec, prefetch: int) -> Inbox:
        inbox = await super().consume(queue, prefetch)
        stop = inbox.stop

        async def stop_and_note() -> None:
            self.broker.notes.append("stopped")  # type: ignore[attr-defined]
            await stop()

        inbox.stop = stop_and_note  # type: ignore[method-assign]
        return inbox


class BlockedHandler:
    """A handler that lingers, and waits in its first call until it is set free."""

    def __init__(self) -> None:
        self.lists: list[int] = []
        self.free = asyncio.Event()
        row = on_many(topics.BUILD_CANCEL, self.handle_many, concurrency=1, linger=60.0)
        self.worker = Worker("scheduler", consumes=[row])

    async def handle_many(self, messages: Sequence[BuildCancelRequested]) -> Sequence[None]:
        self.lists.append(len(messages))
        await self.free.wait()
        return [None] * len(messages)


async def test_a_message_of_an_incomplete_list_is_returned_after_its_reader_stopped() -> None:
    """RabbitMQ's queues count a message that is requeued before as one of a crashed reader."""
    broker, stopping, handler = BrokerThatNotes(), asyncio.Event(), BlockedHandler()
    async with Bus(TransportThatNotes(broker)) as bus, asyncio.TaskGroup() as group:
        await bus.transport.declare(QUEUE)
        await bus.publish(*(cancel(number) for number in range(50)))  # a full list raises the average
        serving = group.create_task(bus.serve(handler.worker, stopping))
        await until(lambda: handler.lists == [50])
        await bus.publish(cancel(50))  # while the handler is busy
        handler.free.set()
        await until(lambda: not broker.queues[QUEUE.name].items)
        await asyncio.sleep(0.05)  # until the reader has taken the message
        stopping.set()
        await in_time(serving)
    assert broker.notes == ["stopped", "requeued"]


async def test_a_redelivered_message_returns_from_a_stopping_worker_to_its_queue() -> None:
    """Among the suspects another replica would notice it only after some time."""
    broker, clock = LocalBroker(), Clock()
    transport = LocalTransport(broker)
    process = Process(
        transport=transport,
        clock=clock,
        replica="r",
        stopping=asyncio.Event(),
        drain=1.0,
        turns=asyncio.Lock(),
    )
    suspects = Suspects("scheduler", process)
    await transport.declare(QUEUE, suspects.queue)
    await transport.publish([envelope_of(cancel(1), clock)], expected=[True])
    inbox = await transport.consume(QUEUE, 10)
    delivery = await in_time(inbox.get())
    await suspects.stop(1.0)
    await suspects.take(QUEUE.name, delivery)
    await inbox.stop()
    assert len(broker.queues[QUEUE.name].items) == 1
    assert not broker.queues[suspects.queue.name].items


ENDING = """
import atexit, sys
from berth.commands.run import _end_process

class Large:
    def __del__(self):
        print("freed")

large = Large()
atexit.register(print, "flushed")
sys.stdout.write("output, ")
_end_process(3)
"""


def test_a_stopped_worker_flushes_its_output_and_frees_no_memory() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ENDING], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (3, "output, flushed\n"), ran.stderr

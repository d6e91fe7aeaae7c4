"""The connection of a process to the bus: publishes, sends queries, subscribes, and serves workers in one
task group.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, Self, TypeVar

from bus.clock import Clock
from bus.codec import decode
from bus.context import envelope_of
from bus.delivery.asking import PendingQuestions
from bus.delivery.serving import Process, serve
from bus.errors import Undecodable
from bus.protocol import Ask, Inbox, QueueSpec, Transport
from bus.routing import Address, Query
from bus.topics import TOPIC_OF
from bus.vocabulary import Message
from bus.worker import Worker

log = logging.getLogger(__name__)

A = TypeVar("A", bound=Message)
R = TypeVar("R", bound=Message)
M = TypeVar("M", bound=Message)

_EXPECTED = {kind.__name__: topic.expected for kind, topic in TOPIC_OF.items()}


class Bus:
    """The connection of a process to the bus, used with `async with`."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock | None = None,
        asks_as: str = "",
        turns: asyncio.Lock | None = None,
    ) -> None:
        """Create a bus; the arguments after the clock are for workers.

        `asks_as` begins the names of reply queues, so that permissions can identify the process. `turns` is
        shared by all buses of a process: one of its workers at a time handles suspects.
        """
        self.transport = transport
        self.clock = clock or Clock()
        self.replica = self.clock.uuid()[:8]
        asker = f"{asks_as}-{self.replica}" if asks_as else self.replica
        self._questions = PendingQuestions(transport, self.clock, asker, self._spawn)
        self._turns = turns or asyncio.Lock()
        self._group = asyncio.TaskGroup()
        self._background: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self.transport.open()
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        for task in self._background:
            task.cancel()
        try:
            await self._group.__aexit__(*exc)
        finally:
            await self.transport.close()

    async def publish(self, *messages: Message) -> None:
        """Publish messages and wait for the broker's confirms."""
        envelopes = [envelope_of(message, self.clock) for message in messages]
        expected = [_EXPECTED.get(envelope.type, True) for envelope in envelopes]
        await self.transport.publish(envelopes, expected=expected)

    def asker(self, query: Query[A, R], timeout: float = 10.0) -> Ask[A, R]:
        """Return a function that sends this query over the bus."""

        async def ask(question: A) -> R:
            return (await self._questions.ask(query, [question], timeout))[0]

        return ask

    def asker_of_many(
        self, query: Query[A, R], timeout: float = 10.0
    ) -> Callable[[Sequence[A]], Awaitable[Sequence[R]]]:
        """Return a function that sends many queries together; the answers are in the order of the queries."""

        async def ask(questions: Sequence[A]) -> Sequence[R]:
            return await self._questions.ask(query, questions, timeout)

        return ask

    async def listen(self, address: Address[M], prefetch: int = 1000) -> "Listener[M]":
        """Subscribe a client to a topic while this bus is open."""
        name = f"listen:{address.key}:{self.replica}:{self.clock.uuid()[:8]}"
        queue = QueueSpec(name, (address.key,), durable=False)
        await self.transport.declare(queue)
        return Listener(address, await self.transport.consume(queue, prefetch))

    async def serve(self, worker: Worker, stopping: asyncio.Event, *, drain: float = 10.0) -> None:
        """Run a worker until stopped, then complete its messages in hand for at most `drain` seconds."""
        process = Process(
            transport=self.transport,
            clock=self.clock,
            replica=self.replica,
            stopping=stopping,
            drain=drain,
            turns=self._turns,
        )
        await serve(worker, process)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._background.append(self._group.create_task(work))


class Listener(Generic[M]):
    """A client's subscription to one topic, which returns the messages in the order of their arrival."""

    def __init__(self, address: Address[M], inbox: Inbox) -> None:
        self._topic = address.topic
        self._inbox = inbox

    async def get(self) -> M:
        while True:
            delivery = await self._inbox.get()
            delivery.done()
            heard = delivery.envelope
            try:
                if delivery.problem:
                    raise Undecodable(delivery.problem)
                message: M = decode(self._topic.message, heard.body, heard.type)
                if self._topic.key(message) != heard.key:
                    raise Undecodable(f"it is a message of {self._topic.key(message)}")
                return message
            except Undecodable as problem:
                log.warning("skipped a message on %s: %s", heard.key, problem)

    async def stop(self) -> None:
        await self._inbox.stop()

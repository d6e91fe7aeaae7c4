"""A process's way onto the bus: publish, ask, listen, and serve workers, all in one task group."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, Self, TypeVar

from bus.clock import Clock
from bus.codec import decode
from bus.context import envelope_of, follow
from bus.delivery.serving import UNAVAILABLE, Served
from bus.errors import AnswerRefused, NoAnswer, Unavailable, Undecodable
from bus.messages import Message
from bus.protocol import Ask, Envelope, Inbox, QueueSpec, Transport
from bus.topics import TOPIC_OF, Address, Query
from bus.worker import Worker, query_queue

log = logging.getLogger(__name__)

A = TypeVar("A", bound=Message)
R = TypeVar("R", bound=Message)
M = TypeVar("M", bound=Message)


class Bus:
    """One process's way onto the bus: publish, ask, listen, serve workers. Use it with `async with`."""

    def __init__(self, transport: Transport, clock: Clock | None = None) -> None:
        self.transport = transport
        self.clock = clock or Clock()
        self.replica = self.clock.uuid()[:8]
        self._asked: dict[str, asyncio.Future[Envelope]] = {}
        self._replies: QueueSpec | None = None
        self._declared: set[str] = set()
        self._declaring = asyncio.Lock()
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
        """Returns when the broker has them safe."""
        envelopes = [envelope_of(message, self.clock) for message in messages]
        expected = [_EXPECTED.get(envelope.type, True) for envelope in envelopes]
        await self.transport.publish(envelopes, expected=expected)

    def asker(self, query: Query[A, R], timeout: float = 10.0) -> Ask[A, R]:
        """The query as a function that asks over this bus."""
        many = self.asker_of_many(query, timeout)

        async def ask(question: A) -> R:
            return (await many([question]))[0]

        return ask

    def asker_of_many(
        self, query: Query[A, R], timeout: float = 10.0
    ) -> Callable[[Sequence[A]], Awaitable[Sequence[R]]]:
        """Asks many questions at once; the answers come in the order of the questions."""

        async def ask(questions: Sequence[A]) -> Sequence[R]:
            replies = await self._replies_ready(query)
            envelopes = [_question(query, question, replies, self.clock) for question in questions]
            loop = asyncio.get_running_loop()
            futures = [loop.create_future() for _ in envelopes]
            for envelope, future in zip(envelopes, futures, strict=True):
                self._asked[envelope.id] = future
            try:
                async with asyncio.timeout(timeout):
                    await self.transport.publish(envelopes, expected=[True] * len(envelopes))
                    for future in futures:
                        await future
            except TimeoutError:
                raise NoAnswer(f"{query.name}: no answer within {timeout} s") from None
            finally:
                for envelope in envelopes:
                    self._asked.pop(envelope.id, None)
            return [_answer(query, future.result()) for future in futures]

        return ask

    async def listen(self, address: Address[M], prefetch: int = 1000) -> "Listener[M]":
        """Hear a topic from now on, for as long as this bus is open: what a client does."""
        name = f"listen:{address.key}:{self.replica}:{self.clock.uuid()[:8]}"
        queue = QueueSpec(name, (address.key,), durable=False)
        await self.transport.declare(queue)
        return Listener(address, await self.transport.consume(queue, prefetch))

    async def serve(self, worker: Worker, stopping: asyncio.Event, *, drain: float = 10.0) -> None:
        """Run a worker until told to stop, then let what is in hand finish, for at most `drain` seconds."""
        await Served(worker, self.transport, self.clock, self.replica).run(stopping, drain)

    async def _replies_ready(self, query: Query[Any, Any]) -> QueueSpec:
        """Our private queue for answers, once questions of this kind have a queue to go to."""
        if self._replies is None or query.name not in self._declared:
            async with self._declaring:
                await self.transport.declare(query_queue(query))
                if self._replies is None:
                    name = f"reply:{self.replica}:{self.clock.uuid()[:8]}"
                    replies = QueueSpec(name, (name,), durable=False)
                    inbox = await self.transport.consume(replies, 10_000)
                    self._background.append(self._group.create_task(self._hear_replies(inbox)))
                    self._replies = replies
                self._declared.add(query.name)
        return self._replies

    async def _hear_replies(self, inbox: Inbox) -> None:
        while True:
            delivery = await inbox.get()
            future = self._asked.get(delivery.envelope.causation)
            if future is not None and not future.done():
                future.set_result(delivery.envelope)
            delivery.done()


class Listener(Generic[M]):
    """A client's ear: the messages of one topic, as they come."""

    def __init__(self, address: Address[M], inbox: Inbox) -> None:
        self._kind = address.topic.message
        self._inbox = inbox

    async def get(self) -> M:
        while True:
            delivery = await self._inbox.get()
            delivery.done()
            try:
                return decode(self._kind, delivery.envelope.body, delivery.envelope.type)
            except Undecodable as problem:
                log.warning("skipped a message on %s: %s", delivery.envelope.key, problem)

    async def stop(self) -> None:
        await self._inbox.stop()


_EXPECTED = {kind.__name__: topic.expected for kind, topic in TOPIC_OF.items()}


def _question(query: Query[A, R], question: A, replies: QueueSpec, clock: Clock) -> Envelope:
    envelope = follow(question, f"ask.{query.name}", clock, framed=True)
    envelope.reply_to = replies.name
    return envelope


def _answer(query: Query[A, R], envelope: Envelope) -> R:
    if envelope.error.startswith(UNAVAILABLE):
        raise Unavailable(f"{query.name}: {envelope.error.removeprefix(UNAVAILABLE)}")
    if envelope.error:
        raise AnswerRefused(f"{query.name}: {envelope.error}")
    return decode(query.answer, envelope.body, envelope.type)

"""The connection of a process to the bus: publishes, subscribes, runs workers, and sends queries. Each
process receives the answers to its queries in reply queues that no other process reads.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from bus.clock import Clock
from bus.context import current_tracer, envelope_of, envelopes_handled, follow
from bus.delivery.process import Process
from bus.delivery.queue_reader import log
from bus.delivery.serving import serve
from bus.errors import AnswerRefused, AnswerUnreadable, NoAnswer, Unavailable, Undecodable, Unroutable
from bus.protocol import Ask, Envelope, Inbox, QueueSpec, Transport, message_in
from bus.topics import TOPIC_NAMED, Address, Query
from bus.vocabulary import Message
from bus.worker import Worker, query_queue, reply_prefix

A = TypeVar("A", bound=Message)
R = TypeVar("R", bound=Message)
M = TypeVar("M", bound=Message)

_REPLIES_AT_ONCE = 10_000


@dataclass(eq=False)
class PendingQuestions:
    """Sends queries of one process and waits for their answers."""

    _transport: Transport
    _clock: Clock
    _replica: str
    _spawn: Callable[[Coroutine[Any, Any, None]], object]
    # (reply queue, id of the query) → future of the answer
    _waiting: dict[tuple[str, str], asyncio.Future[Envelope]] = field(default_factory=dict)
    _replies: dict[str, QueueSpec] = field(default_factory=dict)  # prefix of reply addresses → queue
    _declared: set[str] = field(default_factory=set)
    _declaring: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, query: Query[A, R], questions: Sequence[A], timeout: float) -> Sequence[R]:
        """Send several queries of one type; return their answers in order, or raise NoAnswer at timeout."""
        tracer = current_tracer()
        asking = tracer.asking(query.name, envelopes_handled()) if tracer is not None else None
        if asking is None:
            return await self._ask(query, questions, timeout, "")
        span, traceparent = asking
        problem: BaseException | None = None
        try:
            return await self._ask(query, questions, timeout, traceparent)
        except BaseException as raised:
            problem = raised
            raise
        finally:
            span.end(problem)

    async def _ask(
        self, query: Query[A, R], questions: Sequence[A], timeout: float, traceparent: str
    ) -> Sequence[R]:
        await self._make_ready(query, {reply_prefix(query, query.cell(question)) for question in questions})
        envelopes = [self._envelope(query, question, traceparent) for question in questions]
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in envelopes]
        for envelope, future in zip(envelopes, futures, strict=True):
            self._waiting[envelope.reply_to, envelope.id] = future
        try:
            async with asyncio.timeout(timeout):
                await self._transport.publish(envelopes, expected=[True] * len(envelopes))
                for future in futures:
                    await future
        except Unroutable as unrouted:
            if query.narrowed and not query.within:
                raise
            self._declared.discard(query.name)  # no queue for the query: the next call declares it again
            raise NoAnswer(f"{query.name}: {unrouted}") from None
        except TimeoutError:
            raise NoAnswer(f"{query.name}: no answer within {timeout} s") from None
        finally:
            for envelope in envelopes:
                self._waiting.pop((envelope.reply_to, envelope.id), None)
        return [_answer(query, future.result()) for future in futures]

    def _envelope(self, query: Query[A, R], question: A, traceparent: str) -> Envelope:
        envelope = follow(question, f"ask.{query.key(question)}", self._clock, framed=True)
        if traceparent:
            envelope.traceparent = traceparent
        envelope.reply_to = self._replies[reply_prefix(query, query.cell(question))].name
        return envelope

    async def _make_ready(self, query: Query[Any, Any], prefixes: Set[str]) -> None:
        """Declare the process's reply queues with these prefixes of their names. A prefix contains the cell
        of a query, so that broker permissions let a cell answer only the queries sent to it.
        """
        if prefixes <= self._replies.keys() and query.name in self._declared:
            return
        async with self._declaring:
            if not query.narrowed:  # not for queries to one cell: the cell may not exist
                await self._transport.declare(query_queue(query.name))
            for prefix in sorted(prefixes):
                if prefix in self._replies:
                    continue
                name = f"{prefix}{self._replica}.{self._clock.uuid()[:8]}"
                replies = QueueSpec(name, (name,), durable=False)
                inbox = await self._transport.consume(replies, _REPLIES_AT_ONCE)
                self._spawn(self._receive_answers(name, inbox))
                self._replies[prefix] = replies
            self._declared.add(query.name)

    async def _receive_answers(self, name: str, inbox: Inbox) -> None:
        while True:
            delivery = await inbox.get()
            answer = delivery.envelope
            future = self._waiting.get((name, answer.causation))
            if delivery.problem or answer.key != name:
                log.warning("%s: not taken for an answer: %s", name, delivery.problem or f"key {answer.key}")
            elif future is not None and not future.done():
                future.set_result(answer)
            delivery.done()


def _answer(query: Query[A, R], envelope: Envelope) -> R:
    if envelope.error:
        refused = Unavailable if envelope.again else AnswerRefused
        raise refused(f"{query.name}: {envelope.error}")
    try:
        return message_in(envelope, query.answer)
    except Undecodable as problem:
        raise AnswerUnreadable(f"{query.name}: its answer cannot be read: {problem}") from None


class Bus:
    """The connection of a process to the bus, used with `async with`."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock | None = None,
        asks_as: str = "",
        turns: asyncio.Lock | None = None,
    ) -> None:
        """Create the connection. `asks_as` is the process's name in its reply queues' names, which broker
        permissions check. `turns` is a lock shared by all Bus objects of a process, so that only one worker
        at a time handles suspects.
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
        """Publish messages, and return when the broker has confirmed that it has stored them."""
        envelopes = [envelope_of(message, self.clock) for message in messages]
        found = [TOPIC_NAMED.get(envelope.type) for envelope in envelopes]
        expected = [topic is None or topic.expected for topic in found]
        await self.transport.publish(envelopes, expected=expected)

    def asker(self, query: Query[A, R], timeout: float = 10.0) -> Ask[A, R]:
        """Return a function that sends a query of this type and returns its answer."""
        ask_many = self.asker_of_many(query, timeout)

        async def ask(question: A) -> R:
            return (await ask_many([question]))[0]

        return ask

    def asker_of_many(
        self, query: Query[A, R], timeout: float = 10.0
    ) -> Callable[[Sequence[A]], Awaitable[Sequence[R]]]:
        """Return a function that sends several queries of this type and returns their answers."""

        async def ask(questions: Sequence[A]) -> Sequence[R]:
            return await self._questions.ask(query, questions, timeout)

        return ask

    async def listen(self, address: Address[M], prefetch: int = 1000) -> "Listener[M]":
        """Subscribe to a topic and return a `Listener`, which returns messages until this bus is closed."""
        name = f"listen:{address.key}:{self.replica}:{self.clock.uuid()[:8]}"
        queue = QueueSpec(name, (address.key,), durable=False)
        await self.transport.declare(queue)
        return Listener(address, await self.transport.consume(queue, prefetch))

    async def serve(self, worker: Worker, stopping: asyncio.Event, *, drain: float = 1.0) -> None:
        """Run a worker until `stopping` is set, then complete messages in progress within `drain` seconds."""
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
    """A subscription to one topic, which returns its messages in the order of their arrival."""

    def __init__(self, address: Address[M], inbox: Inbox) -> None:
        self._topic = address.topic
        self._inbox = inbox

    async def get(self) -> M:
        """Wait for the next message of this subscription. Unreadable messages are logged and skipped."""
        while True:
            delivery = await self._inbox.get()
            delivery.done()
            envelope = delivery.envelope
            try:
                if delivery.problem:
                    raise Undecodable(delivery.problem)
                message: M = message_in(envelope, self._topic.message)
                if self._topic.key(message) != envelope.key:
                    raise Undecodable(f"it is a message of {self._topic.key(message)}")
                return message
            except Undecodable as problem:
                log.warning("skipped a message on %s: %s", envelope.key, problem)

    async def stop(self) -> None:
        await self._inbox.stop()

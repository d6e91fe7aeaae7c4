"""Runs workers on a transport: the only task group, the only place where a handler's verdict becomes an ack.

A handler that returns has its emits published and confirmed, then its message is acked; so duplicates are possible
and losses are not. `Retry` waits in a delay queue, `Poison` and the undecodable go to the dead-letter queue,
`Unavailable` waits as long as it takes, and any other exception is a bug: five more tries, then a dead letter.
"""

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar

import msgspec

from bus.clock import Clock, monotonic
from bus.codec import decode
from bus.context import current, follow
from bus.messages import Message
from bus.meters import HANDLED, HANDLING_SECONDS
from bus.protocol import (
    AnswerRefused,
    Ask,
    DeadLetter,
    Delivery,
    Envelope,
    Inbox,
    NoAnswer,
    Poison,
    QueueSpec,
    Retry,
    TooBig,
    Transport,
    Unavailable,
    Undecodable,
    Unroutable,
)
from bus.topics import TOPIC_OF, Address, Query
from bus.worker import Answers, Every, On, Undeclared, Worker, messages_of, query_queue

log = logging.getLogger(__name__)

A = TypeVar("A", bound=Message)
R = TypeVar("R", bound=Message)
M = TypeVar("M", bound=Message)

MAX_FAULTS = 5
MAX_CRASHES = 20
MAX_UNROUTABLE = 60
_UNAVAILABLE = "unavailable: "  # how an answer says: ask again later


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
        await self.relay([envelope_of(message, self.clock) for message in messages])

    async def relay(self, envelopes: Sequence[Envelope]) -> None:
        """Publish what was made into envelopes elsewhere (an outbox)."""
        expected = [not envelope.type or _EXPECTED.get(envelope.type, True) for envelope in envelopes]
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
            envelopes = [
                _question(query, question, replies, self.clock) for question in questions
            ]
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
        await _Served(self, worker).run(stopping, drain)

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


class _Served:
    """A worker being served."""

    def __init__(self, bus: Bus, worker: Worker) -> None:
        self.bus = bus
        self.worker = worker
        self.transport = bus.transport
        self.clock = bus.clock

    async def run(self, stopping: asyncio.Event, drain: float) -> None:
        rows: list[On | Answers] = [*self.worker.consumes, *self.worker.answers]
        queues = [self.worker.queue_of(row, self.bus.replica) for row in rows]
        await self.transport.declare(*queues, *(query_queue(query) for query in self.worker.asks))
        for start in self.worker.starts:
            await start()
        readers = [_Reader(self, row, queue) for row, queue in zip(rows, queues, strict=True)]
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(run()) for run in self.worker.runs]
            background += [group.create_task(self._again_and_again(timer)) for timer in self.worker.timers]
            for reader in readers:
                await reader.start(group)
            log.info("%s: serving", self.worker.name)
            await stopping.wait()
            log.info("%s: draining", self.worker.name)
            for reader in readers:
                await reader.stop()
            await asyncio.gather(*(reader.drained(drain) for reader in readers))
            for task in background:
                task.cancel()
        for stop in self.worker.stops:
            await stop()
        log.info("%s: stopped", self.worker.name)

    async def emit(
        self, made: Sequence[tuple[Envelope | None, Message]], declared: frozenset[type[Message]]
    ) -> None:
        """Publish what handlers returned, each as a consequence of the envelope it answers to."""
        if not made:
            return
        envelopes, expected = [], []
        for cause, message in made:
            if type(message) not in declared:
                raise Undeclared(
                    f"{self.worker.name} emitted {type(message).__name__}, which its row does not declare"
                )
            envelopes.append(envelope_of(message, self.clock, cause))
            expected.append(TOPIC_OF[type(message)].expected)
        await self.transport.publish(envelopes, expected=expected)

    async def bury(self, delivery: Delivery, queue: QueueSpec, reason: str, trace: str = "") -> None:
        envelope, now = delivery.envelope, self.clock.now()
        log.error("%s: %s to the dead letters: %s", queue.name, envelope.key, reason)
        await self.transport.bury(
            DeadLetter(
                id=envelope.id,
                queue=queue.name,
                key=envelope.key,
                type=envelope.type,
                reason=reason,
                first_died=envelope.first_died or now,
                died=now,
                attempt=envelope.attempt,
                correlation=envelope.correlation,
                body=bytes(envelope.body),
                traceback=trace,
            )
        )
        delivery.done()

    async def again(self, delivery: Delivery, queue: QueueSpec, seconds: float, *, fault: bool = False) -> None:
        envelope = delivery.envelope
        later = msgspec.structs.replace(
            envelope, attempt=envelope.attempt + 1, faults=envelope.faults + (1 if fault else 0)
        )
        await self.transport.delay(queue.name, later, seconds)
        delivery.done()

    async def _again_and_again(self, timer: Every) -> None:
        if not timer.at_once:
            await asyncio.sleep(timer.seconds)
        while True:
            try:
                emits = messages_of(await timer.handler())
                await self.emit([(None, message) for message in emits], timer.emits)
            except (Unavailable, Unroutable) as condition:
                log.warning("%s: %s", self.worker.name, condition)
            except Exception:
                log.exception("%s: a timer failed; it goes on", self.worker.name)
            await asyncio.sleep(timer.seconds)


class _Reader:
    """One row being served: takes deliveries off its queue and settles each."""

    def __init__(self, served: _Served, row: On | Answers, queue: QueueSpec) -> None:
        self.served = served
        self.row = row
        self.queue = queue
        self.kind: type[Message] = row.query.asks if isinstance(row, Answers) else row.address.topic.message
        name = row.query.name if isinstance(row, Answers) else row.address.topic.pattern
        labels = (served.worker.name, name)
        self._count = {
            outcome: HANDLED.labels(*labels, outcome) for outcome in ("done", "retry", "dead", "fault")
        }
        self._seconds = HANDLING_SECONDS.labels(*labels)
        self._busy: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(row.concurrency)
        self._group: asyncio.TaskGroup
        self._inbox: Inbox
        self._loop: asyncio.Task[None]

    async def start(self, group: asyncio.TaskGroup) -> None:
        per_slot = self.row.batch or 1
        prefetch = min(per_slot * self.row.concurrency * 2, 20_000)
        self._group = group
        self._inbox = await self.served.transport.consume(self.queue, prefetch)
        self._loop = group.create_task(self._dispatch())

    async def stop(self) -> None:
        self._loop.cancel()
        with suppress(asyncio.CancelledError):
            await self._loop
        await self._inbox.stop()

    async def drained(self, seconds: float) -> None:
        if self._busy:
            _, late = await asyncio.wait(self._busy, timeout=seconds)
            for task in late:
                task.cancel()

    async def _dispatch(self) -> None:
        while True:
            await self._slots.acquire()
            try:
                deliveries = [await self._inbox.get()]
            except asyncio.CancelledError:
                self._slots.release()
                raise
            while len(deliveries) < (self.row.batch or 1):
                more = self._inbox.get_nowait()
                if more is None:
                    break
                deliveries.append(more)
            task = self._group.create_task(self._handle(deliveries))
            self._busy.add(task)
            task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._busy.discard(task)
        self._slots.release()

    async def _handle(self, deliveries: Sequence[Delivery]) -> None:
        started = monotonic()
        try:
            readable = []
            for delivery in deliveries:
                message = await self._read(delivery)
                if message is not None:
                    readable.append((delivery, message))
            if readable:
                await self._settle(readable)
        except asyncio.CancelledError:
            for delivery in deliveries:
                delivery.requeue()  # of no effect on those already settled
            raise
        except Exception:  # the transport itself failed us: leave the messages to the broker
            log.exception("%s: could not settle", self.queue.name)
            for delivery in deliveries:
                delivery.requeue()
        self._seconds.observe(monotonic() - started)

    async def _read(self, delivery: Delivery) -> Message | None:
        """The message, or None when it had to be buried."""
        reason = delivery.problem
        if not reason and delivery.crashes > MAX_CRASHES:
            reason = f"its reader went away {delivery.crashes} times without settling it"
        if not reason:
            try:
                return decode(self.kind, delivery.envelope.body, delivery.envelope.type)
            except Undecodable as problem:
                reason = str(problem)
        await self._dead(delivery, reason)
        return None

    async def _settle(self, readable: Sequence[tuple[Delivery, Message]]) -> None:
        """Handle these together, and decide each one's fate."""
        alone = len(readable) == 1
        context = current.set(readable[0][0].envelope if alone else None)
        try:
            outcomes = await self._call([message for _, message in readable])
            made, verdicts = self._sort(readable, outcomes)
            await self._publish(made)
        except Exception as problem:
            if alone:
                await self._verdict(readable[0][0], problem)
                return
            if isinstance(problem, Unavailable):
                for delivery, _ in readable:
                    await self._verdict(delivery, problem)
                return
        else:
            for delivery, verdict in verdicts:
                if verdict is None:
                    self._count["done"].inc()
                    delivery.done()
                else:
                    await self._verdict(delivery, verdict)
            return
        finally:
            current.reset(context)
        for one in readable:  # together they failed: find out which by itself
            await self._settle([one])

    async def _call(self, messages: Sequence[Message]) -> Sequence[Any]:
        if self.row.batch is None:
            return [await self.row.handler(messages[0])]
        outcomes: Sequence[Any] = await self.row.handler(messages)
        if len(outcomes) != len(messages):
            raise TypeError(f"{self.queue.name}: {len(messages)} messages, {len(outcomes)} outcomes")
        return outcomes

    def _sort(
        self, readable: Sequence[tuple[Delivery, Message]], outcomes: Sequence[Any]
    ) -> tuple[list[tuple[Envelope, Message]], list[tuple[Delivery, Exception | None]]]:
        made: list[tuple[Envelope, Message]] = []
        verdicts: list[tuple[Delivery, Exception | None]] = []
        for (delivery, _), outcome in zip(readable, outcomes, strict=True):
            if isinstance(outcome, Exception):
                verdicts.append((delivery, outcome))
                continue
            verdicts.append((delivery, None))
            made.extend((delivery.envelope, message) for message in messages_of(outcome))
        return made, verdicts

    async def _publish(self, made: Sequence[tuple[Envelope, Message]]) -> None:
        if isinstance(self.row, On):
            await self.served.emit(made, self.row.emits)
        else:
            await self._reply([_reply_to(cause, message, self.served.clock) for cause, message in made])

    async def _reply(self, answers: Sequence[Envelope]) -> None:
        """Answer whoever still waits."""
        waited_for = [answer for answer in answers if answer.key]
        if waited_for:
            await self.served.transport.publish(waited_for, expected=[False] * len(waited_for))

    async def _verdict(self, delivery: Delivery, problem: Exception) -> None:
        envelope = delivery.envelope
        if isinstance(problem, Retry):
            self._count["retry"].inc()
            await self.served.again(delivery, self.queue, problem.after)
        elif isinstance(problem, Poison | AnswerRefused | TooBig):
            await self._dead(delivery, str(problem))
        elif isinstance(problem, Unavailable) and envelope.reply_to:
            # whoever asked is told at once and asks again; a question nobody waits for is worth nothing
            await self._reply([_refusal_to(envelope, _UNAVAILABLE + str(problem), self.served.clock)])
            delivery.done()
        elif isinstance(problem, Unavailable):
            self._count["retry"].inc()
            log.warning("%s: %s", self.queue.name, problem)
            await self.served.again(delivery, self.queue, min(0.5 * envelope.attempt, 5.0))
        elif isinstance(problem, Unroutable) and envelope.attempt < MAX_UNROUTABLE:
            self._count["retry"].inc()
            log.warning("%s: %s", self.queue.name, problem)
            await self.served.again(delivery, self.queue, min(0.5 * envelope.attempt, 5.0))
        elif isinstance(problem, Unroutable):
            await self._dead(delivery, str(problem))
        else:
            trace = "".join(traceback.format_exception(problem))
            self._count["fault"].inc()
            if envelope.faults < MAX_FAULTS:
                log.error("%s: a bug, tried again: %s", self.queue.name, trace)
                await self.served.again(delivery, self.queue, 0.1 * 2**envelope.faults, fault=True)
            else:
                await self._dead(delivery, f"{type(problem).__name__}: {problem}", trace)

    async def _dead(self, delivery: Delivery, reason: str, trace: str = "") -> None:
        self._count["dead"].inc()
        if delivery.envelope.reply_to:
            await self._reply([_refusal_to(delivery.envelope, reason, self.served.clock)])
        await self.served.bury(delivery, self.queue, reason, trace)


_EXPECTED = {kind.__name__: topic.expected for kind, topic in TOPIC_OF.items()}


def envelope_of(message: Message, clock: Clock, cause: Envelope | None = None) -> Envelope:
    """A message ready to be published under its topic's key."""
    topic = TOPIC_OF[type(message)]
    return follow(message, topic.key(message), clock, framed=topic.framed(message), cause=cause)


def _question(query: Query[A, R], question: A, replies: QueueSpec, clock: Clock) -> Envelope:
    envelope = follow(question, f"ask.{query.name}", clock, framed=True)
    envelope.reply_to = replies.name
    return envelope


def _answer(query: Query[A, R], envelope: Envelope) -> R:
    if envelope.error.startswith(_UNAVAILABLE):
        raise Unavailable(f"{query.name}: {envelope.error.removeprefix(_UNAVAILABLE)}")
    if envelope.error:
        raise AnswerRefused(f"{query.name}: {envelope.error}")
    return decode(query.answer, envelope.body, envelope.type)


def _reply_to(cause: Envelope, message: Message, clock: Clock) -> Envelope:
    return follow(message, cause.reply_to, clock, framed=True, cause=cause)


def _refusal_to(cause: Envelope, error: str, clock: Clock) -> Envelope:
    return Envelope(
        id=clock.uuid(),
        type="",
        key=cause.reply_to,
        body=msgspec.Raw(b"null"),
        correlation=cause.correlation or cause.id,
        causation=cause.id,
        sent_at=clock.now(),
        error=error,
    )

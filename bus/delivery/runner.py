"""The connection of a process to the bus: publishes, subscribes, runs workers, and sends queries. Each
process receives the answers to its queries in reply queues that no other process reads.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Generic, Self, TypeVar
from weakref import WeakKeyDictionary

from bus.clock import Clock
from bus.context import current_tracer, envelope_of, envelopes_handled, follow
from bus.delivery.settling import (
    HANDLING_SECONDS,
    AnsweredRow,
    ConsumedRow,
    Emit,
    Emitter,
    Process,
    Readable,
    ServedRow,
    Suspects,
)
from bus.errors import AnswerRefused, AnswerUnreadable, NoAnswer, Unavailable, Undecodable, Unroutable
from bus.protocol import Ask, Delivery, Envelope, Inbox, QueueSpec, Transport, message_in
from bus.topics import TOPIC_NAMED, Address, Query
from bus.vocabulary import Message
from bus.worker import Answers, Every, Narrow, On, Worker, messages_of, query_queue, reply_prefix

# Section: reads the queue of one row of a worker's table, and handles its messages concurrently.


Work = Callable[[], Awaitable[None]]
MAX_PREFETCH = 20_000
SLOW_CALLS = 8  # maximum number of concurrent handler calls with slow messages (see `on_many`)
UNSETTLED_PAUSE = 0.2  # seconds until messages are requeued after the connection to the broker failed


log = logging.getLogger(__name__)

# the queue readers of this process, oldest first, for the diagnosis of stuck processes
READERS: WeakKeyDictionary["QueueReader", None] = WeakKeyDictionary()


class QueueReader:
    """Reads one queue: collects messages in lists, and calls the handler with several lists concurrently."""

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
            apart = [delivery for delivery, _ in slow]
            self._call(apart, partial(self._handle_slow, slow, apart))
        if readable:
            await self._handle_readable(readable, deliveries)

    async def _handle_slow(self, slow: Readable, deliveries: list[Delivery]) -> None:
        async with self._slow_slots:
            await self._handle_readable(slow, deliveries)

    async def _handle_readable(self, readable: Readable, deliveries: list[Delivery]) -> None:
        """Handle messages; those whose results for clients are not confirmed yet are settled in further
        tasks, for which this call does not wait, and removed from `deliveries`.
        """
        for unsettled in await self.served.handle(readable, self._group.create_task):
            removed = {id(delivery) for delivery in unsettled.deliveries}
            deliveries[:] = [delivery for delivery in deliveries if id(delivery) not in removed]
            self._call([*unsettled.deliveries], unsettled.settle)

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


# Section: runs one worker from start to stop: declares its queues, handles their messages and its timers, and
# at the stop completes the messages in progress.


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

"""Serves one worker's table: takes deliveries off its queues and turns each handler's verdict into an ack.

A handler that returns has its emits published and confirmed, then its message is acked: duplicates are
possible, losses are not. `Retry` waits in a delay queue, `Poison` and the undecodable go to the dead-letter
queue, `Unavailable` waits as long as it takes, and any other exception is a bug: five more tries, then a dead
letter.
"""

import asyncio
import logging
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from bus.clock import Clock
from bus.codec import decode
from bus.context import current, envelope_of, follow
from bus.delivery.meters import HANDLED, HANDLING_SECONDS
from bus.errors import (
    AnswerRefused,
    BrokerRefused,
    Poison,
    Retry,
    TooBig,
    Unavailable,
    Undecodable,
    Unroutable,
)
from bus.messages import Message
from bus.protocol import DeadLetter, Delivery, Envelope, Inbox, QueueSpec, Transport
from bus.topics import TOPIC_OF
from bus.worker import Answers, Every, On, Undeclared, Worker, messages_of, query_queue

log = logging.getLogger(__name__)

FAULT_DELAYS = (0.1, 0.1, 0.5, 0.5, 1.0)  # seconds before each further try after a bug
MAX_CRASHES = 20
MAX_UNROUTABLE = 60
UNSETTLED_PAUSE = 0.2  # seconds before the same is tried with a transport that has just failed
UNAVAILABLE = "unavailable: "  # how an answer says: ask again later


class Served:
    """A worker being served."""

    def __init__(self, worker: Worker, transport: Transport, clock: Clock, replica: str) -> None:
        self.worker = worker
        self.transport = transport
        self.clock = clock
        self.replica = replica

    async def run(self, stopping: asyncio.Event, drain: float) -> None:
        rows: list[On | Answers] = [*self.worker.consumes, *self.worker.answers]
        queues = [self.worker.queue_of(row, self.replica) for row in rows]
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

    async def again(
        self, delivery: Delivery, queue: QueueSpec, seconds: float, *, fault: bool = False
    ) -> None:
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
                await self._emit_in_the_end([(None, message) for message in emits], timer.emits)
            except Unavailable as condition:
                log.warning("%s: %s", self.worker.name, condition)
            except Exception:
                log.exception("%s: a timer failed; it goes on", self.worker.name)
            await asyncio.sleep(timer.seconds)

    async def _emit_in_the_end(
        self, made: Sequence[tuple[None, Message]], declared: frozenset[type[Message]]
    ) -> None:
        """What a timer said has no message to come again by: it is said until somebody hears it.

        What nobody hears for a minute is left to the timer's next turns, which it must not hold up for ever.
        """
        pauses = iter((0.05, 0.1, 0.2, 0.5))
        unheard = 0
        while unheard < MAX_UNROUTABLE:
            try:
                await self.emit(made, declared)
                return
            except Unavailable as condition:
                log.info("%s: %s; trying again", self.worker.name, condition)
            except Unroutable as nobody:
                log.info("%s: %s; trying again", self.worker.name, nobody)
                made, unheard = await self._unheard(made, declared), unheard + 1
            await asyncio.sleep(next(pauses, 1.0))
        log.warning("%s: %d messages of a timer were heard by nobody", self.worker.name, len(made))

    async def _unheard(
        self, made: Sequence[tuple[None, Message]], declared: frozenset[type[Message]]
    ) -> Sequence[tuple[None, Message]]:
        """Say each by itself; those that nobody hears."""
        left = []
        for one in made:
            try:
                await self.emit([one], declared)
            except (Unavailable, Unroutable):
                left.append(one)
        return left


class _Reader:
    """One row being served: takes deliveries off its queue and settles each."""

    def __init__(self, served: Served, row: On | Answers, queue: QueueSpec) -> None:
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
        self._company = 1.0  # how many came together of late
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
        most, linger = self.row.batch or 1, self.row.linger if isinstance(self.row, On) else 0.0
        while True:
            await self._slots.acquire()
            deliveries: list[Delivery] = []
            try:
                deliveries.append(await self._inbox.get())
                if linger and self._company > 1.5:
                    await asyncio.sleep(linger)
            except asyncio.CancelledError:
                for delivery in deliveries:
                    delivery.requeue()
                self._slots.release()
                raise
            while len(deliveries) < most:
                more = self._inbox.get_nowait()
                if more is None:
                    break
                deliveries.append(more)
            self._company += (len(deliveries) - self._company) / 4
            task = self._group.create_task(self._handle(deliveries))
            self._busy.add(task)
            task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._busy.discard(task)
        self._slots.release()

    async def _handle(self, deliveries: Sequence[Delivery]) -> None:
        started = self.served.clock.monotonic()
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
            try:
                await asyncio.sleep(UNSETTLED_PAUSE)
            finally:
                for delivery in deliveries:
                    delivery.requeue()
        self._seconds.observe(self.served.clock.monotonic() - started)

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
        elif isinstance(problem, Poison | AnswerRefused | BrokerRefused | TooBig):
            await self._dead(delivery, str(problem))
        elif isinstance(problem, Unavailable) and self._asked_by(envelope):
            # whoever asked is told at once and asks again; a question nobody waits for is worth nothing
            await self._reply([_refusal_to(envelope, UNAVAILABLE + str(problem), self.served.clock)])
            delivery.done()
        elif isinstance(problem, Unavailable) or (
            isinstance(problem, Unroutable) and envelope.attempt < MAX_UNROUTABLE
        ):
            self._count["retry"].inc()
            log.warning("%s: %s", self.queue.name, problem)
            await self.served.again(delivery, self.queue, min(0.5 * envelope.attempt, 5.0))
        elif isinstance(problem, Unroutable):
            await self._dead(delivery, str(problem))
        else:
            trace = "".join(traceback.format_exception(problem))
            self._count["fault"].inc()
            if envelope.faults < len(FAULT_DELAYS):
                log.error("%s: a bug, tried again: %s", self.queue.name, trace)
                await self.served.again(delivery, self.queue, FAULT_DELAYS[envelope.faults], fault=True)
            else:
                await self._dead(delivery, f"{type(problem).__name__}: {problem}", trace)

    def _asked_by(self, envelope: Envelope) -> bool:
        """Does somebody wait for an answer? Not of a message, whatever a stranger wrote beside it."""
        return isinstance(self.row, Answers) and bool(envelope.reply_to)

    async def _dead(self, delivery: Delivery, reason: str, trace: str = "") -> None:
        self._count["dead"].inc()
        if self._asked_by(delivery.envelope):
            await self._reply([_refusal_to(delivery.envelope, reason, self.served.clock)])
        await self.served.bury(delivery, self.queue, reason, trace)


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

"""Handles the messages of one row of a worker's table, which consumes a topic or answers a query. Messages
that the handler returns are published and confirmed before the handled message is acknowledged, so messages
can be duplicated, but not lost.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from prometheus_client import Counter, Histogram

from bus.context import current_tracer, envelope_of, follow, handling
from bus.delivery.failed_messages import Again, Dead, letter_of, refusal_of, verdict
from bus.delivery.process import Process
from bus.delivery.suspects import Suspects
from bus.errors import BrokerRefused, Unavailable, Unconfirmed, Undecodable, Unroutable
from bus.invalid_requests import refusal_of as answer_to_invalid
from bus.protocol import Delivery, Envelope, is_suspect
from bus.reading import read_envelope
from bus.topics import TOPIC_OF, matches
from bus.vocabulary import Message
from bus.worker import Answers, On, Undeclared, Worker, messages_of, reply_prefix

log = logging.getLogger(__name__)


HANDLED = Counter("berth_messages", "messages settled, by how", ["worker", "topic", "outcome"])
HANDLING_SECONDS = Histogram(
    "berth_handling_seconds",
    "from taking messages off a queue to having settled them",
    ["worker", "topic"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)


CONFIRM_SECONDS = 0.5  # for which a handler call waits for the confirms of results for clients
ANSWER_SECONDS = 5.0  # limit for the answer to an invalid request, because a client's full queue takes none


Readable = Sequence[tuple[Delivery, Message]]
Made = Sequence[tuple[Envelope, Message]]


Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
Fates = Sequence[tuple[Delivery, Exception | None]]  # None: the message was handled


class ClientResults:
    """The results of a handler that are published for clients, and why they failed."""

    def __init__(self, made: Made) -> None:
        self.causes = {cause.id for cause, _ in made}
        self._problem: Exception | None = None
        self.publishing: asyncio.Task[None] | None = None

    async def publish(self, publish: Callable[[Made], Awaitable[None]], results: Made) -> None:
        """Wait for the publication; keep its exception for `check` and `problem_of` instead of raising it."""
        try:
            await publish(results)
        except Exception as problem:
            self._problem = problem

    def check(self) -> None:
        """Raise why the results could not be published, unless a client's queue does not confirm them."""
        if self._problem is not None and not isinstance(self._problem, Unconfirmed):
            raise self._problem

    def problem_of(self, delivery: Delivery) -> Exception | None:
        """Return why the results of a handled message could not be published, or None."""
        if isinstance(self._problem, Unconfirmed) and delivery.envelope.id not in self._problem.causes:
            return None
        return self._problem if delivery.envelope.id in self.causes else None


class Unsettled(NamedTuple):
    """Handled messages that are settled when clients' queues have confirmed the results, or are late."""

    deliveries: Sequence[Delivery]
    settle: Callable[[], Awaitable[None]]


class ServedRow(ABC):
    """Handles the messages of one row of a worker's table. Subclasses publish the handler's results."""

    def __init__(self, row: On | Answers, worker: Worker, process: Process, suspects: Suspects) -> None:
        self.row = row
        self._suspects = suspects
        self.queue = worker.queue_of(row, process.replica)
        self.labels = (worker.name, row.name)
        self._by_name = self.queue.name.replace("*", "+")  # the queue's name at the broker
        (self._hears,) = self.queue.keys
        self._transport = process.transport
        self._clock = process.clock
        self._count = {
            outcome: HANDLED.labels(*self.labels, outcome) for outcome in ("done", "retry", "dead", "fault")
        }

    @abstractmethod
    def _key_of(self, message: Message) -> str:
        pass

    @abstractmethod
    async def _publish(self, made: Made) -> None:
        pass

    @abstractmethod
    def _is_for_clients(self, message: Message) -> bool:
        """Return whether programs outside berth may receive a result of the handler."""

    @abstractmethod
    async def _refuse(self, envelope: Envelope, why: str, *, again: bool = False) -> bool:
        """If the message is a query with a reply address, send a refusal and return True, else return False.
        `again` permits the sender to repeat the query.
        """

    async def _answer_dead(self, envelope: Envelope, dead: Dead) -> None:
        """Inform the sender of a message that becomes a dead letter, if its sender waits for an answer."""
        await self._refuse(envelope, dead.reason)

    async def decode(self, deliveries: Sequence[Delivery]) -> Readable:
        """Decode the messages of a list, and return them without invalid messages and suspects. Invalid
        messages are moved to the dead letters, suspects to the suspects' queue.
        """
        readable = []
        suspects = []
        for delivery in deliveries:
            if delivery.crashes and self.queue.durable and not delivery.problem:
                log.info("%s: %s was delivered before", self.queue.name, delivery.envelope.key)
            # A suspect is moved as a copy, which would lose `problem`: invalid messages are not moved.
            if is_suspect(delivery) and self.queue.durable and not delivery.problem:
                suspects.append(delivery)
            elif (message := await self._readable(delivery)) is not None:
                readable.append((delivery, message))
        if suspects:
            await asyncio.gather(*(self._suspects.take(self.queue.name, suspect) for suspect in suspects))
        return readable

    async def handle_alone(self, delivery: Delivery) -> None:
        """Handle one message alone, also if it was redelivered, and remove it from its queue."""
        if (message := await self._readable(delivery)) is not None:
            await self.handle([(delivery, message)])

    async def store_dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Move a message from its queue to the dead letters, with this reason."""
        await self._bury(delivery, Dead(reason))

    async def _readable(self, delivery: Delivery) -> Message | None:
        """Decode the message of a delivery; if it is invalid, store it as a dead letter and return None."""
        try:
            if delivery.problem:
                raise Undecodable(delivery.problem)
            message: Message = read_envelope(self.row.message, delivery.envelope)
        except Undecodable as problem:
            await self._bury(delivery, Dead(str(problem), invalid=True))
            return None
        try:
            if delivery.envelope.message is None:
                self._check(delivery.envelope, message)
        except Undecodable as problem:
            await self._bury(delivery, Dead(str(problem), sender=delivery.envelope.key, invalid=True))
            return None
        return message

    def _check(self, envelope: Envelope, message: Message) -> None:
        """Raise Undecodable if fields contradict the routing key, as broker permissions verify only keys."""
        key, expected = self._routed_by(envelope), self._key_of(message)
        if expected != key and not ("*" in key and matches(key, expected)):
            raise Undecodable(f"it came by the key {key}, and is a message of {expected}")
        if not matches(self._hears, expected):  # sent to this queue by its name
            raise Undecodable(f"it came to a queue of {self._hears}, and is a message of {expected}")

    def _routed_by(self, envelope: Envelope) -> str:
        """Return a message's routing key; if it was sent to the queue by the queue's name, the row's key."""
        return self._hears if envelope.key == self._by_name else envelope.key

    async def handle(self, readable: Readable, spawn: Spawn | None = None) -> list[Unsettled]:
        """Handle the messages of a list and settle each: acknowledge the message, schedule a retry, or move
        the message to the dead letters.

        With `spawn`, which starts a task, return the messages whose results for clients are not confirmed
        soon, for the caller to settle them; other messages need not wait. If an exception is raised, messages
        not settled yet stay in their queue.
        """
        unsettled: list[Unsettled] = []
        if (tracer := current_tracer()) is None:
            await self._handle_together(readable, spawn, unsettled)
            return unsettled
        spans = [tracer.handling(*self.labels, delivery.envelope) for delivery, _ in readable]
        problem: BaseException | None = None
        try:
            problem = await self._handle_together(readable, spawn, unsettled)
        except BaseException as raised:
            problem = raised
            raise
        finally:
            for span in spans:
                if span is not None:
                    span.end(problem)
        return unsettled

    async def _handle_together(
        self, readable: Readable, spawn: Spawn | None, unsettled: list[Unsettled]
    ) -> Exception | None:
        """Call the handler with all messages; if that fails, with each message alone. If a service is
        unavailable, or there is only one message, return the exception instead. Add messages whose results
        are not confirmed yet to `unsettled`.
        """
        alone = len(readable) == 1
        try:
            repeated = [message for delivery, message in readable if _is_repeated(delivery)]
            with handling(((delivery.envelope, message) for delivery, message in readable), repeated):
                outcomes = await self._call([message for _, message in readable])
                made, fates = _sorted(readable, outcomes)
                for_clients = await self._publish_all(made, spawn)
        except Exception as problem:
            if alone or isinstance(problem, Unavailable):
                for delivery, _ in readable:
                    await self._judge(delivery, problem)
                return problem
        else:
            if log.isEnabledFor(logging.DEBUG):
                self._log_messages(readable, made)
            settled = fates
            if for_clients is not None:
                settled = self._without_unsettled(fates, for_clients, unsettled)
            await self._settle(settled)
            return None
        for single in readable:  # perhaps only one message made the batch fail
            unsettled += await self.handle([single], spawn)
        return None

    async def _publish_all(self, made: Made, spawn: Spawn | None) -> ClientResults | None:
        """Publish the handler's results; return those for clients, if there are any, as soon as all others
        are confirmed, and these too or CONFIRM_SECONDS have passed.
        """
        results: list[tuple[Envelope, Message]] = []
        others: list[tuple[Envelope, Message]] = []
        for each in made:
            (results if self._is_for_clients(each[1]) else others).append(each)
        if not results:
            await self._publish(made)
            return None
        for_clients = ClientResults(results)
        publish = for_clients.publish(self._publish, results)
        if spawn is None:
            await publish
        else:
            for_clients.publishing = publishing = spawn(publish)
            try:
                if others:
                    await self._publish(others)
                await asyncio.wait([publishing], timeout=CONFIRM_SECONDS)
            except BaseException:
                publishing.cancel()
                raise
        for_clients.check()
        return for_clients

    def _without_unsettled(
        self, fates: Fates, for_clients: ClientResults, unsettled: list[Unsettled]
    ) -> list[tuple[Delivery, Exception | None]]:
        """Return the fates of messages whose results are confirmed or late; add the others to `unsettled`."""
        publishing = for_clients.publishing
        if publishing is None or publishing.done():
            return [(delivery, fate or for_clients.problem_of(delivery)) for delivery, fate in fates]
        waits = [fate is None and delivery.envelope.id in for_clients.causes for delivery, fate in fates]
        waiting = [delivery for (delivery, _), is_waiting in zip(fates, waits, strict=True) if is_waiting]

        async def settle() -> None:
            await publishing
            await self._settle([(delivery, for_clients.problem_of(delivery)) for delivery in waiting])

        unsettled.append(Unsettled(waiting, settle))
        return [each for each, is_waiting in zip(fates, waits, strict=True) if not is_waiting]

    async def _settle(self, fates: Fates) -> None:
        late = []
        for delivery, fate in fates:
            if fate is None:
                self._count["done"].inc()
                delivery.done()
            elif isinstance(fate, Unconfirmed):
                late.append(self._judge_unconfirmed(delivery, fate))
            else:
                await self._judge(delivery, fate)
        if late:
            await asyncio.gather(*late)

    async def _judge_unconfirmed(self, delivery: Delivery, problem: Unconfirmed) -> None:
        """Decide about a handled message whose result a client's queue has not confirmed in time."""
        await self._judge(delivery, problem)

    def _log_messages(self, readable: Readable, made: Made) -> None:
        """Log a line for each handled message, so that one build can be followed through all workers."""
        for delivery, message in readable:
            emitted = [type(result).__name__ for cause, result in made if cause is delivery.envelope]
            names = type(message).__name__, ", ".join(emitted) or "nothing"
            log.debug("%s: %s handled, published %s", self.queue.name, *names, extra=_about(delivery))

    async def _call(self, messages: Sequence[Message]) -> Sequence[Any]:
        if self.row.batch is None:
            return [await self.row.handler(messages[0])]
        outcomes: Sequence[Any] = await self.row.handler(messages)
        if len(outcomes) != len(messages):
            raise TypeError(f"{self.queue.name}: {len(messages)} messages, {len(outcomes)} outcomes")
        return outcomes

    async def _judge(self, delivery: Delivery, problem: Exception) -> None:
        match verdict(problem, delivery.envelope):
            case Dead() as dead:
                await self._bury(delivery, dead)
            case Again(away=True, why=why) if await self._refuse(delivery.envelope, why, again=True):
                delivery.done()  # the requester repeats the query
            case Again() as again:
                await self._postpone(delivery, again)

    async def _postpone(self, delivery: Delivery, again: Again) -> None:
        self._count["fault" if again.fault else "retry"].inc()
        if again.fault:
            log.error("%s: a bug, tried again: %s", self.queue.name, again.why, extra=_about(delivery))
        elif again.why:
            log.warning("%s: %s", self.queue.name, again.why, extra=_about(delivery))
        envelope = delivery.envelope
        later = msgspec.structs.replace(
            envelope,
            attempt=envelope.attempt + 1,
            faults=envelope.faults + again.fault,
            unroutable=envelope.unroutable + again.unroutable,
            suspect_of="",
            strikes=0,
        )
        await self._transport.delay(self.queue.name, later, again.after)
        delivery.done()

    async def _bury(self, delivery: Delivery, dead: Dead) -> None:
        self._count["dead"].inc()
        envelope, queue = delivery.envelope, self.queue.name
        await self._answer_dead(envelope, dead)
        why = dead.reason
        log.error("%s: %s to the dead letters: %s", queue, envelope.key, why, extra=_about(delivery))
        now, sender = self._clock.now(), dead.sender or delivery.sender
        letter = letter_of(envelope, queue, dead.reason, dead.trace, now, sender)
        await self._transport.store_dead_letter(letter)
        delivery.done()


def _is_repeated(delivery: Delivery) -> bool:
    return delivery.crashes > 0 or delivery.envelope.attempt > 1


def _about(delivery: Delivery) -> Mapping[str, Sequence[Envelope]]:
    return {"envelopes": (delivery.envelope,)}


def _sorted(
    readable: Readable, outcomes: Sequence[Any]
) -> tuple[list[tuple[Envelope, Message]], list[tuple[Delivery, Exception | None]]]:
    """Return two lists made from the handler's outcomes: the messages to publish, each with the handled
    envelope as cause; and all deliveries, each with the exception that the handler raised for it, or None.
    """
    made: list[tuple[Envelope, Message]] = []
    fates: list[tuple[Delivery, Exception | None]] = []
    for (delivery, handled), outcome in zip(readable, outcomes, strict=True):
        if isinstance(outcome, Exception):
            fates.append((delivery, outcome))
            continue
        fates.append((delivery, None))
        results = messages_of(outcome)
        if notes := getattr(handled, "unknown_fields", ()):
            results = [_noted(result, notes) for result in results]
        made.extend((delivery.envelope, result) for result in results)
    return made, fates


def _noted(result: Message, notes: Sequence[str]) -> Message:
    """Return the answer to a request with notes about unknown fields of the request."""
    return msgspec.structs.replace(result, notes=notes) if hasattr(result, "notes") else result


Emit = tuple[Envelope | None, Message]  # the causing envelope (None for a timer), and the message to publish


@dataclass(eq=False)
class Emitter:
    """Publishes what the handlers of one worker return."""

    worker: str
    _process: Process

    async def emit(self, made: Sequence[Emit], declared: frozenset[type[Message]]) -> None:
        """Publish messages and wait for the confirms. Raise Undeclared if a message's type is not among the
        types that the table row declares.
        """
        if not made:
            return
        envelopes, expected = [], []
        for cause, message in made:
            if type(message) not in declared:
                raise Undeclared(
                    f"{self.worker} emitted {type(message).__name__}, which its row does not declare"
                )
            envelopes.append(envelope_of(message, self._process.clock, cause))
            expected.append(TOPIC_OF[type(message)].expected)
        await self._process.transport.publish(envelopes, expected=expected)


class ConsumedRow(ServedRow):
    """Handles the messages of a topic. If a result for clients is not confirmed in time, its message is
    handled again later, and leads to the same result.
    """

    row: On

    def __init__(self, row: On, worker: Worker, process: Process, suspects: Suspects) -> None:
        super().__init__(row, worker, process, suspects)
        self._emitter = Emitter(worker.name, process)

    def _key_of(self, message: Message) -> str:
        return self.row.address.topic.key(message)

    def _is_for_clients(self, message: Message) -> bool:
        topic = TOPIC_OF.get(type(message))
        return topic is not None and topic.outsiders

    async def _publish(self, made: Made) -> None:
        try:
            await self._emitter.emit(made, self.row.emits)
        except Unroutable:
            cause = made[0][0]
            of_several = any(envelope is not cause for envelope, _ in made)
            if self.row.on_unroutable is None or of_several or cause.attempt < self.row.undeliverable_after:
                raise
            for _, message in made:
                await self._publish_or_undo(cause, message)

    async def _publish_or_undo(self, cause: Envelope, message: Message) -> None:
        """Publish a message. If no queue receives it, publish instead the messages that `row.on_unroutable`
        returns, which undo the work of the handler.
        """
        assert self.row.on_unroutable is not None
        try:
            await self._emitter.emit([(cause, message)], self.row.emits)
        except Unroutable as unroutable:
            log.warning("%s: given up: %s", self.queue.name, unroutable)
            instead = messages_of(await self.row.on_unroutable(message))
            await self._emitter.emit([(cause, replacement) for replacement in instead], self.row.emits)

    async def _refuse(self, envelope: Envelope, why: str, *, again: bool = False) -> bool:
        return False  # a message of a topic expects no answer, even if it has a reply address

    async def _answer_dead(self, envelope: Envelope, dead: Dead) -> None:
        if not dead.invalid:
            return
        topic, bound = self.row.address.topic, self._hears
        answer = answer_to_invalid(topic, bound, self._routed_by(envelope), envelope, dead.reason)
        if answer is None:
            return
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._emitter.emit([(envelope, answer)], frozenset({type(answer)}))
        except (TimeoutError, Unavailable, BrokerRefused) as problem:
            log.warning("%s: no answer to an invalid request: %s", self.queue.name, problem or "no confirm")


class AnsweredRow(ServedRow):
    """Answers queries. An answer that a client's queue does not confirm in time is dropped."""

    def __init__(self, row: Answers, worker: Worker, process: Process, suspects: Suspects) -> None:
        super().__init__(row, worker, process, suspects)
        self._query = row.query
        self._replies = reply_prefix(row.query, row.cell)

    def _key_of(self, message: Message) -> str:
        return f"ask.{self._query.key(message)}"

    def _is_for_clients(self, message: Message) -> bool:
        return self._query.of_client

    async def _judge_unconfirmed(self, delivery: Delivery, problem: Unconfirmed) -> None:
        self._count["done"].inc()
        delivery.done()  # a client that still needs the answer repeats its query

    def _check(self, envelope: Envelope, message: Message) -> None:
        super()._check(envelope, message)
        if not self._may_answer(envelope):
            replies = self._replies_to(envelope)
            raise Undecodable(f"answers to this question go to {replies}…, not to {envelope.reply_to}")

    def _may_answer(self, envelope: Envelope) -> bool:
        """Return whether the query has no reply address, or one with the prefix that its cell or client must
        use.

        No broker checks reply addresses.
        """
        return not envelope.reply_to or envelope.reply_to.startswith(self._replies_to(envelope))

    def _replies_to(self, envelope: Envelope) -> str:
        if not self._query.of_client:
            return self._replies
        return reply_prefix(self._query, envelope.key.rpartition(".")[2])  # the client's name, verified

    async def _publish(self, made: Made) -> None:
        await self._reply(
            [
                follow(message, cause.reply_to, self._clock, framed=True, cause=cause)
                for cause, message in made
            ]
        )

    async def _refuse(self, envelope: Envelope, why: str, *, again: bool = False) -> bool:
        if not envelope.reply_to or not self._may_answer(envelope):
            return False
        await self._reply([refusal_of(envelope, why, self._clock, again=again)])
        return True

    async def _reply(self, answers: Sequence[Envelope]) -> None:
        waited_for = [answer for answer in answers if answer.key]
        if waited_for:
            await self._transport.publish(waited_for, expected=[False] * len(waited_for))

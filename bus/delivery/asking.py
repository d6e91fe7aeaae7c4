"""Queries over the bus: each carries the address of a private reply queue of this process, and has a future
for its answer.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence, Set
from typing import Any, TypeVar

from bus.clock import Clock
from bus.codec import decode
from bus.context import current_tracer, envelopes_handled, follow
from bus.errors import AnswerRefused, NoAnswer, Unavailable, Unroutable
from bus.protocol import Envelope, Inbox, QueueSpec, Transport
from bus.routing import Query
from bus.vocabulary import Message
from bus.worker import query_queue, reply_prefix

log = logging.getLogger(__name__)

A = TypeVar("A", bound=Message)
R = TypeVar("R", bound=Message)

_REPLIES_AT_ONCE = 10_000


class PendingQuestions:
    """Queries of one process without a reply so far."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        replica: str,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._replica = replica
        self._spawn = spawn
        self._waiting: dict[tuple[str, str], asyncio.Future[Envelope]] = {}  # by where, and the question's id
        self._replies: dict[str, QueueSpec] = {}  # by what their addresses begin with
        self._declared: set[str] = set()
        self._declaring = asyncio.Lock()

    async def ask(self, query: Query[A, R], questions: Sequence[A], timeout: float) -> Sequence[R]:
        """Send queries and return their answers in the same order."""
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
            if not query.within:
                raise
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
        """Declare the private reply queues before the first query that uses them.

        There is one for each cell that is asked or asks: a cell that may reply there can reply to nothing
        else.
        """
        if prefixes <= self._replies.keys() and query.name in self._declared:
            return
        async with self._declaring:
            if not query.narrowed:  # or a queue would be made for a cell that is not there
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
    return decode(query.answer, envelope.body, envelope.type)

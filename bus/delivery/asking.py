"""Questions over the bus: each with the address of our private queue, and a future for its answer."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from bus.clock import Clock
from bus.codec import decode
from bus.context import follow
from bus.errors import AnswerRefused, NoAnswer, Unavailable, Unroutable
from bus.messages import Message
from bus.protocol import Envelope, Inbox, QueueSpec, Transport
from bus.topics import Query
from bus.worker import query_queue

A = TypeVar("A", bound=Message)
R = TypeVar("R", bound=Message)

_REPLIES_AT_ONCE = 10_000


class PendingQuestions:
    """Those of one process that are not answered yet."""

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
        self._waiting: dict[str, asyncio.Future[Envelope]] = {}
        self._replies: QueueSpec | None = None
        self._declared: set[str] = set()
        self._declaring = asyncio.Lock()

    async def ask(self, query: Query[A, R], questions: Sequence[A], timeout: float) -> Sequence[R]:
        """The answers, in the order of the questions."""
        replies = await self._replies_ready(query)
        envelopes = [self._envelope(query, question, replies) for question in questions]
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in envelopes]
        for envelope, future in zip(envelopes, futures, strict=True):
            self._waiting[envelope.id] = future
        try:
            async with asyncio.timeout(timeout):
                await self._publish(query, envelopes)
                for future in futures:
                    await future
        except TimeoutError:
            raise NoAnswer(f"{query.name}: no answer within {timeout} s") from None
        finally:
            for envelope in envelopes:
                self._waiting.pop(envelope.id, None)
        return [_answer(query, future.result()) for future in futures]

    async def _publish(self, query: Query[A, R], envelopes: Sequence[Envelope]) -> None:
        try:
            await self._transport.publish(envelopes, expected=[True] * len(envelopes))
        except Unroutable as nobody:
            if not query.yet:
                raise
            raise NoAnswer(f"{query.name}: {nobody}") from None

    def _envelope(self, query: Query[A, R], question: A, replies: QueueSpec) -> Envelope:
        envelope = follow(question, f"ask.{query.key(question)}", self._clock, framed=True)
        envelope.reply_to = replies.name
        return envelope

    async def _replies_ready(self, query: Query[Any, Any]) -> QueueSpec:
        """Our private queue for answers, once questions of this kind have a queue to go to."""
        if self._replies is None or query.name not in self._declared:
            async with self._declaring:
                if not query.narrowed:  # or a queue would be made for a cell that is not there
                    await self._transport.declare(query_queue(query.name))
                if self._replies is None:
                    name = f"reply:{self._replica}:{self._clock.uuid()[:8]}"
                    replies = QueueSpec(name, (name,), durable=False)
                    inbox = await self._transport.consume(replies, _REPLIES_AT_ONCE)
                    self._spawn(self._hear(inbox))
                    self._replies = replies
                self._declared.add(query.name)
        return self._replies

    async def _hear(self, inbox: Inbox) -> None:
        while True:
            delivery = await inbox.get()
            future = self._waiting.get(delivery.envelope.causation)
            if future is not None and not future.done():
                future.set_result(delivery.envelope)
            delivery.done()


def _answer(query: Query[A, R], envelope: Envelope) -> R:
    if envelope.error:
        refused = Unavailable if envelope.again else AnswerRefused
        raise refused(f"{query.name}: {envelope.error}")
    return decode(query.answer, envelope.body, envelope.type)

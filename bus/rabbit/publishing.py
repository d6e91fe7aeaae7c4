"""Publishes envelopes. While an AMQP message with a routing key is unconfirmed, further envelopes with that
key wait, and then share the next AMQP message. Without such a message, an envelope is published immediately.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from bus.errors import Unavailable, Unconfirmed
from bus.protocol import MAX_FRAME_BYTES, MAX_FRAME_ENVELOPES, Envelope, Receipt, encode_frame
from bus.rabbit.amqp_messages import properties_of, properties_of_frame
from bus.rabbit.fast_channels.frames import Post
from bus.rabbit.reconnecting import Link

_FRAMES_AT_ONCE = 1  # unconfirmed frames of one lane: envelopes that arrive meanwhile form a larger frame
_SINGLES_AT_ONCE = 256  # unconfirmed messages of one lane whose envelopes may not share a frame
_HEAD_BYTES = 300  # approximate size of an envelope in a frame without its body

Lane = tuple[str, str, bool, bool]  # exchange, routing key, mandatory, framed


@dataclass(eq=False, slots=True)
class _Queue:
    """The envelopes that wait to be published with one routing key."""

    lane: Lane
    waiting: deque[tuple[Envelope, Receipt]] = field(default_factory=deque)
    under_way: int = 0

    def take(self) -> list[tuple[Envelope, Receipt]]:
        waiting = self.waiting
        if not self.lane[3]:
            return [waiting.popleft()]
        size = count = 0
        for envelope, _ in itertools.islice(waiting, MAX_FRAME_ENVELOPES):
            size += len(envelope.body) + _HEAD_BYTES
            if count and size > MAX_FRAME_BYTES:
                break
            count += 1
        return [waiting.popleft() for _ in range(count)]


class Publisher:
    """Publishes envelopes; `post` publishes an AMQP message and returns after the broker's confirm."""

    def __init__(self, link: Link, post: Callable[[Post], Awaitable[None]]) -> None:
        self._link = link
        self._post = post
        self._queues: dict[Lane, _Queue] = {}
        self._ready: dict[_Queue, None] = {}
        self._frames = itertools.count(1)
        self._sender = link.clock.uuid()

    async def send(self, exchange: str, envelopes: Iterable[tuple[str, Envelope, bool]]) -> None:
        """Publish envelopes to this exchange, and wait for the broker's confirms.

        Each item of `envelopes` is a routing key, an envelope, and True if a queue must receive the envelope.
        """
        if (receipt := self.start(exchange, envelopes)) is not None:
            await receipt.done

    def start(self, exchange: str, envelopes: Iterable[tuple[str, Envelope, bool]]) -> Receipt | None:
        """Begin to publish envelopes as `send` does, and return the receipt of all; None without any."""
        self._link.check()
        items = list(envelopes)
        receipt = Receipt(len(items))
        for key, envelope, mandatory in items:
            lane = (exchange, key, mandatory, envelope.framed)
            queue = self._queues.get(lane)
            if queue is None:
                queue = self._queues[lane] = _Queue(lane)
            queue.waiting.append((envelope, receipt))
            self._schedule_send(queue)
        return receipt if items else None

    def abandon(self) -> None:
        """Raise Unavailable in all waiting calls of `send`, because the connection closes."""
        problem = Unavailable(
            f"the connection to RabbitMQ at {self._link.place} was closed before this was sent"
        )
        for queue in self._queues.values():
            while queue.waiting:
                queue.waiting.popleft()[1].settle(problem)
        self._queues.clear()

    def _schedule_send(self, queue: _Queue) -> None:
        """Publish waiting envelopes after the event loop's current iteration, so that all envelopes queued in
        the iteration share an AMQP message.
        """
        if not self._ready:
            asyncio.get_running_loop().call_soon(self._dispatch)
        self._ready[queue] = None

    def _dispatch(self) -> None:
        ready, self._ready = self._ready, {}
        if self._link.closed:
            self.abandon()
            return
        for queue in ready:
            limit = _FRAMES_AT_ONCE if queue.lane[3] else _SINGLES_AT_ONCE
            while queue.waiting and queue.under_way < limit:
                queue.under_way += 1
                self._link.spawn(self._carry(queue, queue.take()))

    async def _carry(self, queue: _Queue, load: list[tuple[Envelope, Receipt]]) -> None:
        problem: Exception | None = None
        try:
            await self._post(self._message(queue.lane, [envelope for envelope, _ in load]))
        except Unconfirmed:
            for envelope, receipt in load:
                receipt.unconfirmed.append(envelope)
        except asyncio.CancelledError:
            problem = Unavailable(f"the connection to RabbitMQ at {self._link.place} was closed meanwhile")
            raise
        except Exception as refused:  # raised in the callers of `send` that wait for this message
            problem = refused
        finally:
            for _, receipt in load:
                receipt.settle(problem)
            queue.under_way -= 1
            if queue.waiting:
                self._schedule_send(queue)
            elif not queue.under_way:
                self._queues.pop(queue.lane, None)

    def _message(self, lane: Lane, envelopes: list[Envelope]) -> Post:
        exchange, key, mandatory, _ = lane
        if len(envelopes) == 1:
            alone = envelopes[0]
            properties = properties_of(alone, self._link.names.key_for_reader(exchange, key), self._link.user)
            return Post(exchange, key, bytes(alone.body), properties, mandatory)
        properties = properties_of_frame(f"{self._sender}-{next(self._frames)}", self._link.user)
        return Post(exchange, key, encode_frame(envelopes), properties, mandatory)

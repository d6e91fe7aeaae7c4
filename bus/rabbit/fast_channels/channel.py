"""A channel that publishes and consumes many messages with little processor time."""

import asyncio
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import ChannelClosed, ChannelInvalidStateError

from bus.protocol import MAX_MESSAGE_BYTES
from bus.rabbit.connection import answered, open_channel, refusal, streams_of
from bus.rabbit.fast_channels.frames import Arrived, FramesOfChannel, OnMessage, Post, arrived

FOREIGN_BYTES = 16 * 1024 * 1024  # largest message of another program, such as Nova, that is received


class BulkChannel:
    """An AMQP channel; messages go past aio-pika, and all other requests through it."""

    async def open(
        self, connection: AbstractConnection, *, confirms: bool, largest: int = MAX_MESSAGE_BYTES
    ) -> Self:
        """Open a channel. Of a message with a body above `largest` bytes, only the beginning is received, so
        that large messages of other programs take no memory.
        """
        self._channel = await open_channel(connection, confirms=confirms)
        self._under = await self._channel.get_underlay_channel()
        if connection.transport is None:
            raise ConnectionError("the connection was closed while a channel was opened on it")
        most = connection.transport.connection.connection_tune.frame_max
        self._wire, writer = streams_of(connection)
        self._frames = FramesOfChannel(
            self._wire, writer, self._under.number, most, confirms=confirms, largest=largest
        )
        self._under.closing.add_done_callback(self._ended)
        self._consumers = itertools.count(1)
        return self

    @property
    def closed(self) -> bool:
        return self._under.is_closed

    def when_closed(self, call: Callable[[], None]) -> None:
        """Call `call` when the channel closes, for whatever reason."""
        self._under.closing.add_done_callback(lambda _: call())

    @property
    def oldest(self) -> int:
        """Return the delivery tag of the oldest message that the broker has not confirmed; 0 if all are
        confirmed, or while the broker accepts no messages.
        """
        return 0 if self._wire.blocked else self._frames.oldest

    @property
    def oldest_id(self) -> str:
        """Return the id of the oldest message that the broker has not confirmed; empty if all are."""
        return self._frames.oldest_id

    def fail_confirms(self, why: Exception) -> None:
        """Raise this error in all calls that wait for confirms."""
        self._frames.end(why)

    @property
    def is_blocked(self) -> bool:
        """Return whether the broker accepts no messages, because it lacks memory or disk space."""
        return bool(self._wire.blocked)

    async def close(self, seconds: float | None = None) -> None:
        """Close the channel; all calls that wait for a reply on it raise an error. `seconds`: the time limit,
        by default that of other requests.
        """
        async with answered(seconds):
            await self._under.close(ChannelInvalidStateError("the channel is closed"))

    async def publish(self, post: Post) -> None:
        """Publish a message; on a channel with confirms, wait for the confirm."""
        if self.closed:
            raise ChannelInvalidStateError("the channel is closed")
        try:
            await self._frames.publish(post)
        except ChannelClosed as closed:
            raise refusal(closed) from None

    async def consume(self, queue: str, in_advance: int, on_message: OnMessage, *, priority: int = 0) -> str:
        """Consume a queue, calling `on_message` with each message; return the consumer tag. `in_advance` is
        the prefetch count. The broker prefers a consumer with a higher `priority` until its prefetch count
        is reached.
        """
        consumer = f"{self._under.number}.{next(self._consumers)}"
        self._frames.consumers[consumer] = on_message
        async with answered():
            await self._channel.set_qos(in_advance)
            await self._under.basic_consume(
                queue, _never, consumer_tag=consumer, arguments={"x-priority": priority} if priority else None
            )
        return consumer

    def when_cancelled(self, call: Callable[[str], None]) -> None:
        """Register a callback for when the broker cancels a consumer because its queue was deleted."""
        self._under.on_consumer_cancel_callbacks.add(lambda frame: call(frame.consumer_tag or ""))

    async def cancel(self, consumer: str) -> None:
        """Stop a consumer; its unsettled messages stay with this channel."""
        async with answered():
            await self._under.basic_cancel(consumer)
        self._frames.consumers.pop(consumer, None)

    async def get(self, queue: str) -> Arrived | None:
        """Return the next message of a queue, or None if the queue is empty."""
        async with answered():
            message = await self._under.basic_get(queue)
        if message.delivery_tag is None:
            return None
        return arrived(
            message.delivery_tag,
            message.exchange or "",
            message.routing_key or "",
            bool(message.redelivered),
            message.body,
            message.header.properties,
            len(message.body),
        )

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self._frames.ack(tag, multiple=multiple)

    def acknowledge_all(self, tags: Sequence[int], unsettled: Iterable[int]) -> None:
        """Acknowledge the messages with these delivery tags. `unsettled` are the tags of all messages that
        stay unsettled, oldest first.

        RabbitMQ sends a quorum queue at most 32 acknowledgements before the queue confirms them. RabbitMQ
        buffers further acknowledgements, and discards the buffer when the channel closes. So one
        acknowledgement settles all messages that are older than every unsettled message.
        """
        oldest = next(iter(unsettled), math.inf)
        if upto := max((tag for tag in tags if tag < oldest), default=0):
            self._frames.ack(upto, multiple=True)
        for tag in tags:
            if tag > upto:
                self._frames.ack(tag, multiple=False)

    def nack(self, tag: int, *, multiple: bool = False) -> None:
        self._frames.nack(tag, multiple=multiple)

    def _ended(self, closing: "asyncio.Future[Any]") -> None:
        why = None if closing.cancelled() else closing.exception()
        self._frames.end(why or ChannelInvalidStateError("the channel is closed"))


async def _never(_: object) -> None:
    pass

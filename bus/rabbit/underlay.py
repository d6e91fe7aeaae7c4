"""What goes below aio-pika's classes, to the channel and the connection under them; nothing else does.

Publishing and reading in bulk are its reason. `python -m bench.amqp_client`, RabbitMQ 3.10 on two cores, 256
messages at once, medians of turns that alternated in one run:

    publish  aio-pika's classes  3,450/s, 82 µs of our processor each     underlay channel  4,440/s, 62 µs
    read     aio-pika's classes  3,830/s, 90 µs of our processor each     underlay channel  5,910/s, 56 µs

`Exchange.publish` lets no message go before the last has left the socket; `Queue.consume` starts one more
task for each, and `IncomingMessage.ack` waits for the socket again. A `Message` takes 10 µs to make, too; the
properties it would make of itself take half a microsecond.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

import msgspec
from aio_pika import DeliveryMode, Message
from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import ChannelClosed, ChannelInvalidStateError, ConnectionClosed

from bus.rabbit.connection import BROKEN, cancelled_by_us, open_channel, reason, refusal, telling_refusals

_HANGING_UP_SECONDS = 5.0


Properties = type(Message(b"").properties)  # what AMQP lets a message say beside its body
PERSISTENT = DeliveryMode.PERSISTENT.value


class Post(msgspec.Struct, frozen=True):
    """One AMQP message on its way out. `mandatory`: somebody must hear it."""

    exchange: str
    key: str
    body: bytes
    properties: Any
    mandatory: bool


class Arrived(msgspec.Struct, frozen=True):
    """One AMQP message as it came. What strangers may set may be anything."""

    tag: int
    exchange: str
    key: str
    redelivered: bool
    body: bytes
    id: object
    type: object
    correlation: object
    reply_to: object
    timestamp: object
    headers: Mapping[str, Any]


class BulkChannel:
    """A channel to publish on, or to read from, as fast as the broker can."""

    async def open(self, connection: AbstractConnection, *, confirms: bool) -> Self:
        self._channel = await open_channel(connection, confirms=confirms)
        self._under = await self._channel.get_underlay_channel()
        self._publish: Callable[..., Awaitable[object]] = self._under.basic_publish
        return self

    @property
    def closed(self) -> bool:
        return self._under.is_closed

    def when_closed(self, call: Callable[[], None]) -> None:
        self._under.closing.add_done_callback(lambda _: call())

    async def close(self) -> None:
        """Whoever still waits for an answer over it hears that it is closed."""
        await self._under.close(ChannelInvalidStateError("the channel is closed"))

    async def publish(self, post: Post) -> None:
        """Returns when the broker has confirmed it, on a channel that confirms."""
        try:
            await self._publish(
                post.body,
                exchange=post.exchange,
                routing_key=post.key,
                properties=post.properties,
                mandatory=post.mandatory,
                wait=False,
            )
        except ChannelClosed as closed:
            raise refusal(closed) from None

    async def consume(self, queue: str, in_advance: int, heard: Callable[[Arrived], None]) -> str:
        """Have this called with each message, so many of them unsettled; the tag to cancel it by."""

        async def hear(message: Any) -> None:
            heard(_arrived(message))

        with telling_refusals():
            await self._channel.set_qos(in_advance)
            answer = await self._under.basic_consume(queue, hear)
        return answer.consumer_tag or ""

    def when_cancelled(self, call: Callable[[str], None]) -> None:
        """The broker ends a consumer: its queue is gone."""
        self._under.on_consumer_cancel_callbacks.add(lambda frame: call(frame.consumer_tag or ""))

    async def cancel(self, consumer: str) -> None:
        await self._under.basic_cancel(consumer)

    async def get(self, queue: str) -> Arrived | None:
        """The next message, without waiting for one."""
        with telling_refusals():
            message = await self._under.basic_get(queue)
        return None if message.delivery_tag is None else _arrived(message)

    async def ready(self, queue: str) -> int:
        """How many messages of this queue nobody holds."""
        with telling_refusals():
            found = await self._channel.get_queue(queue)
        return found.declaration_result.message_count or 0

    async def ack(self, tag: int, *, multiple: bool = False) -> None:
        await self._under.basic_ack(tag, multiple=multiple, wait=False)

    async def nack(self, tag: int, *, multiple: bool = False) -> None:
        """Back into the queue."""
        await self._under.basic_nack(tag, multiple=multiple, requeue=True, wait=False)


def _arrived(message: Any) -> Arrived:
    said = message.header.properties
    return Arrived(
        message.delivery_tag or 0,
        message.exchange or "",
        message.routing_key or "",
        bool(message.redelivered),
        message.body,
        said.message_id,
        said.message_type,
        said.correlation_id,
        said.reply_to,
        said.timestamp,
        said.headers or {},
    )


async def ended(connection: AbstractConnection) -> str:
    """Why the connection has ended, once it has. Looks for itself, in case nobody tells."""
    if connection.transport is None:
        return "it was closed"
    under = connection.transport.connection
    closing = under.closing
    while not closing.done() and under.is_opened:
        await asyncio.wait([closing], timeout=1.0)
    why = closing.exception() if closing.done() and not closing.cancelled() else None
    closing.cancel()
    return reason(why) if isinstance(why, Exception) else "it fell silent"


async def hang_up(connection: AbstractConnection) -> None:
    """Close it, and see to it that everybody who still waits for it hears that it is closed."""
    transport, connection.transport = connection.transport, None
    await connection.close()  # which without a transport waits for nothing; with one, for a silent broker too
    if transport is None:
        return
    under = transport.connection
    try:
        async with asyncio.timeout(_HANGING_UP_SECONDS):
            await under.close(ConnectionClosed(0, "closed by us"))
    except (*BROKEN, TimeoutError) as problem:
        if cancelled_by_us(problem):
            raise
    # its queue of frames to write is bounded, and who waits for room in it would wait for ever
    while not under.write_queue.empty():
        while not under.write_queue.empty():
            under.write_queue.get_nowait()
        await asyncio.sleep(0)

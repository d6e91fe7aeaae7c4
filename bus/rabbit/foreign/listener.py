"""Consumes messages from exchanges of other systems, such as Ironic's and Nova's."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from aio_pika.abc import AbstractChannel, AbstractConnection

from bus.broker_urls import place
from bus.clock import Clock
from bus.rabbit.connection import (
    BROKEN,
    RequestRefused,
    answered,
    broker_url,
    cancelled_by_us,
    open_channel,
    plainly,
    queue_depth,
)
from bus.rabbit.fast_channels.channel import FOREIGN_BYTES, BulkChannel
from bus.rabbit.fast_channels.frames import Arrived
from bus.rabbit.foreign.connections import KeptConnection, connected, declare_queue

log = logging.getLogger(__name__)

PREFETCH = 1000
SETTLE_SECONDS = 0.25  # time for which acknowledgements are combined: a quorum queue logs each
TOGETHER = 256  # largest number of messages handled together
POLL_SECONDS = 5.0  # between two checks of the binding
FIRST_POLL_SECONDS = 0.1  # first pause while the exchange is missing; grows to POLL_SECONDS
_NEVER = 1_000_000_000  # delivery limit: by default RabbitMQ 4 drops a message after 20 redeliveries

HandleBodies = Callable[[Sequence[bytes]], Awaitable[None]]
Gap = Callable[[], None]


@dataclass(eq=False)
class ForeignListener:
    """Consumes messages from another system's exchange, through a durable queue of berth.

    berth never declares the exchange, because the other system could not use an exchange declared with
    different arguments, but checks repeatedly whether it exists. A transient exchange disappears with its
    broker, and so does the binding of berth's queue: the binding is renewed periodically, and the caller is
    informed if messages may be lost. All replicas share the queue, and RabbitMQ delivers to one replica at a
    time, in order. Messages are acknowledged in batches after they are handled; unacknowledged messages are
    redelivered.
    """

    url: str
    _: KW_ONLY
    exchange: str
    keys: Sequence[str]
    queue: str
    name: str
    made_by: str  # a sentence for the log about the system that declares the exchange
    quorum: bool = True
    kept_seconds: float | None = None  # seconds without a consumer until the broker deletes our queue
    most_messages: int | None = None  # maximum length of our queue: then the broker drops the oldest messages
    poll_seconds: float = POLL_SECONDS
    clock: Clock = field(default_factory=Clock)
    subscribed: bool = field(default=False, init=False)  # connected, and the queue is bound to the exchange
    # When `gap` is called: whether messages since the last consumption may have been lost.
    has_lost: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._url = broker_url(self.url, self.name)
        self._waiting = False  # True: the log already has that the exchange is missing
        self._kept = KeptConnection(self._url, f"not subscribed {self.exchange}", self.clock)
        self._binding: AbstractChannel | None = None
        self._is_full = False  # True: the queue has reached `most_messages`

    async def run(self, handle: HandleBodies, gap: Gap) -> None:
        """Pass messages to `handle` in order, until cancelled. Call `gap` after each new subscription, or if
        the queue was full; `has_lost` then states whether messages may have been lost.
        """

        async def use(connection: AbstractConnection) -> None:
            try:
                await self._attend(connection, handle, gap)
            finally:
                self.subscribed, self._binding = False, None
                self.has_lost = True  # a transient exchange and its bindings are deleted with the broker

        await self._kept.run(use)

    async def _attend(self, connection: AbstractConnection, handle: HandleBodies, gap: Gap) -> None:
        loop = asyncio.get_running_loop()
        with plainly(self._url):
            subscription = await self._listen(connection)
        pause, look_at = FIRST_POLL_SECONDS, 0.0
        try:
            while True:
                if loop.time() >= look_at:
                    with plainly(self._url):
                        before, self.subscribed = self.subscribed, await self._bind(connection)
                    if self.subscribed and (not before or self._is_full):
                        gap()
                        self.has_lost = False
                    pause = self.poll_seconds if self.subscribed else min(2 * pause, self.poll_seconds)
                    look_at = loop.time() + pause
                bodies, tag = await subscription.next(look_at)
                if bodies:
                    await handle(bodies)
                    subscription.is_safe(tag)
                with plainly(self._url):
                    subscription.check()
                    await subscription.settle_due()
        finally:
            await subscription.leave()

    async def _listen(self, connection: AbstractConnection) -> "_Subscription":
        kind: dict[str, Any] = {"x-queue-type": "classic"}
        if self.quorum:
            kind = {"x-queue-type": "quorum", "x-delivery-limit": _NEVER}
        if self.kept_seconds is not None:
            kind = {**kind, "x-expires": int(self.kept_seconds * 1000)}
        if self.most_messages is not None:
            kind = {**kind, "x-max-length": self.most_messages}
        await self._check_length(connection)
        try:
            arguments = {**kind, "x-single-active-consumer": True}
            await declare_queue(connection, self.queue, arguments=arguments, durable=True)
        except RequestRefused as refused:
            if refused.code not in ("PRECONDITION_FAILED", "ACCESS_REFUSED"):
                raise
        reading = await BulkChannel().open(connection, confirms=False, largest=FOREIGN_BYTES)
        subscription = _Subscription(reading)
        await subscription.channel.consume(self.queue, PREFETCH, subscription.received)
        return subscription

    async def unread(self, queues: Iterable[str]) -> dict[str, int]:
        """Return, by name, the number of messages in the given queues, without queues that do not exist or
        have a consumer. Raise Unavailable if the broker cannot be reached, BrokerRefused if it refuses.
        """
        async with connected(self._url) as connection:
            found = {name: await queue_depth(connection, name) for name in queues}
        return {
            name: depth.messages for name, depth in found.items() if depth is not None and not depth.readers
        }

    async def _check_length(self, connection: AbstractConnection) -> None:
        """Set `has_lost` if the broker may have dropped messages because berth's queue is missing or full."""
        if self.most_messages is None:
            return
        try:
            found = await queue_depth(connection, self.queue)
        except RequestRefused as refused:
            if refused.code != "ACCESS_REFUSED":
                raise
            return
        self._is_full = found is not None and found.messages >= self.most_messages - PREFETCH
        self.has_lost |= found is None or self._is_full

    async def _bind(self, connection: AbstractConnection) -> bool:
        """Bind berth's queue to the exchange by all routing keys; return False if the exchange is missing."""
        if self._binding is None or self._binding.is_closed:
            self._binding = await open_channel(connection, confirms=False)
        try:
            async with answered():
                queue = await self._binding.get_queue(self.queue, ensure=False)
                for key in self.keys:
                    await queue.bind(self.exchange, key)
        except RequestRefused as refused:
            if "no exchange" not in str(refused):
                raise
            self.has_lost = True
            if not self._waiting:
                self._waiting = True
                log.warning(
                    "RabbitMQ at %s has no exchange %r: %s; waiting for it",
                    place(self._url),
                    self.exchange,
                    self.made_by,
                )
            return False
        if self._waiting or self._kept.complaint:
            log.warning("subscribed the exchange %r at %s", self.exchange, place(self._url))
        self._waiting, self._kept.complaint = False, ""
        await self._check_length(connection)
        return True


class _Subscription:
    """The messages that a channel has received and that are not handled, or handled but not acknowledged."""

    def __init__(self, channel: BulkChannel) -> None:
        self.channel = channel
        self._is_closed = False
        self._messages: deque[Arrived] = deque()
        self._wake = asyncio.Event()
        self._now = asyncio.get_running_loop().time
        self._safe = self._acknowledged = 0  # last tags of handled and of acknowledged messages
        self._acknowledge_at = math.inf
        channel.when_closed(self._end)
        channel.when_cancelled(self._end)

    def received(self, message: Arrived) -> None:
        self._messages.append(message)
        self._wake.set()

    async def next(self, until: float) -> tuple[list[bytes], int]:
        """Return the bodies of the oldest messages that were not returned before, and the delivery tag of the
        last one; an empty list and 0 if no message arrives before the event loop's time `until`, or before
        acknowledgements are due.
        """
        if not self._messages and not self._is_closed:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(until, self._acknowledge_at)):
                    await self._wake.wait()
        taken = [self._messages.popleft() for _ in range(min(len(self._messages), TOGETHER))]
        return [bytes(message.body) for message in taken], taken[-1].tag if taken else 0

    def is_safe(self, tag: int) -> None:
        self._safe, self._acknowledge_at = tag, min(self._acknowledge_at, self._now() + SETTLE_SECONDS)

    async def settle_due(self) -> None:
        if self._now() >= self._acknowledge_at or self._safe - self._acknowledged >= TOGETHER:
            await self._acknowledge()

    async def leave(self) -> None:
        """Acknowledge all handled messages before the channel closes."""
        try:
            if self._safe > self._acknowledged:
                await self._acknowledge()
        except BROKEN as problem:
            if cancelled_by_us(problem):
                raise

    async def _acknowledge(self) -> None:
        self.channel.ack(self._safe, multiple=True)
        self._acknowledged, self._acknowledge_at = self._safe, math.inf

    def check(self) -> None:
        if self._is_closed:
            raise ConnectionError("nothing comes from it any more")

    def _end(self, _: str = "") -> None:
        self._is_closed = True
        self._wake.set()

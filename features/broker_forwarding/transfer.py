"""Moves the messages of queues over one connection to each of two brokers: consume, publish, acknowledge."""

import asyncio
import logging
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from aio_pika import ExchangeType
from aio_pika.abc import AbstractConnection

from bus.broker_urls import place
from bus.clock import Backoff, Clock
from bus.errors import BrokerRefused, OperationRefused, Unavailable
from bus.rabbit.connection import (
    ANSWER_SECONDS,
    BROKEN,
    RequestRefused,
    answered,
    ended,
    open_channel,
    plainly,
    streams_of,
)
from bus.rabbit.fast_channels.channel import BulkChannel
from bus.rabbit.fast_channels.frames import Arrived, NoQueueBound, NotTaken, Post
from bus.rabbit.topology import BrokerNames
from features.broker_forwarding.forwarded import fan_out_name, post_to_worker, post_unchanged

log = logging.getLogger(__name__)

PREFETCH = 200  # maximum number of unacknowledged messages of one queue
CHANNELS = 32  # number of channels to the new broker; each publishes messages of one queue at a time
PRIORITY = -10  # consumer priority: workers that still consume at the old broker come first
FINISHING_SECONDS = 30.0  # limit for forwarding received messages at the end; the rest stays in the queues


@dataclass(eq=False)
class Transfer:
    """Forwards some queues over one connection to the old broker and one to the new broker."""

    _old: AbstractConnection
    _new: AbstractConnection
    _old_url: str
    new_url: str
    names: BrokerNames
    user: str | None  # user at the new broker
    clock: Clock
    queues: "dict[str, QueueTransfer]" = field(default_factory=dict)
    forwarded: int = 0
    received: int = 0
    _unacknowledged: dict[int, None] = field(default_factory=dict)  # delivery tags, oldest first
    _confirmed_tags: list[int] = field(default_factory=list)  # delivery tags to acknowledge
    _is_finishing: bool = False
    _idle_channels: list[BulkChannel] = field(default_factory=list)
    _exchanges: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._channels = asyncio.Semaphore(CHANNELS)

    @property
    def in_hand(self) -> int:
        """Return how many messages are received and not acknowledged."""
        return sum(queue.in_hand for queue in self.queues.values())

    async def run(self, queues: Sequence[str], stopping: asyncio.Event) -> None:
        """Forward messages to the new broker until `stopping` is set; then complete all received messages."""
        with plainly(self._old_url):
            source = await BulkChannel().open(self._old, confirms=False, largest=sys.maxsize)
        self.queues = {name: QueueTransfer(name, self, source) for name in queues}
        async with asyncio.TaskGroup() as group:
            watching = [
                group.create_task(_fail_when_lost(self._old, self._old_url)),
                group.create_task(_fail_when_lost(self._new, self.new_url)),
                group.create_task(self._fail_when_closed(source)),
            ]
            forwarding = [group.create_task(queue.run()) for queue in self.queues.values()]
            consumers = await self._consume(source)
            await stopping.wait()
            with plainly(self._old_url):
                for consumer in consumers:
                    await source.cancel(consumer)
            self._is_finishing = True
            for queue in self.queues.values():
                queue.finish()
            if forwarding:
                await asyncio.wait(forwarding, timeout=FINISHING_SECONDS)
            self._send_acknowledgements(source)
            for task in (*watching, *forwarding):
                task.cancel()

    async def _consume(self, source: BulkChannel) -> list[str]:
        consumers = []
        for queue in self.queues.values():
            try:
                with plainly(self._old_url):
                    consumer = await source.consume(queue.name, PREFETCH, queue.receive, priority=PRIORITY)
            except BrokerRefused as refused:
                raise BrokerRefused(
                    f"the queue {queue.name} cannot be consumed ({refused}): leave it out with --except"
                ) from None
            consumers.append(consumer)
        return consumers

    async def _fail_when_closed(self, source: BulkChannel) -> None:
        closed = asyncio.Event()
        source.when_closed(closed.set)
        await closed.wait()
        raise Unavailable(f"RabbitMQ at {place(self._old_url)} closed the channel that reads the queues")

    def on_received(self, message: Arrived) -> None:
        self._unacknowledged[message.tag] = None
        self.received += 1

    def on_forwarded(self, messages: Sequence[Arrived], source: BulkChannel) -> None:
        """Acknowledge forwarded messages at the old broker: immediately, or if the transfer is ending,
        together at the end of `run`.
        """
        self.forwarded += len(messages)
        for message in messages:
            del self._unacknowledged[message.tag]
            self._confirmed_tags.append(message.tag)
        if not self._is_finishing:
            self._send_acknowledgements(source)

    def _send_acknowledgements(self, source: BulkChannel) -> None:
        source.acknowledge_all(self._confirmed_tags, self._unacknowledged)
        self._confirmed_tags.clear()

    async def publish(self, posts: Sequence[Post]) -> list[BaseException | None]:
        """Publish messages in this order on a channel without messages of other queues: a returned message is
        identified by its id only. Return for each message None if it was confirmed, else NotTaken or
        NoQueueBound.
        """
        with plainly(self.new_url):
            async with self._channel() as channel:
                results = await self._confirmed(channel, posts)
                for result in results:
                    if result is not None and not isinstance(result, NotTaken | NoQueueBound):
                        raise result
                if any(isinstance(result, NotTaken) for result in results):
                    # After an election of a leader RabbitMQ 3.10 may refuse all later messages of a channel.
                    await channel.close()
        return results

    async def _confirmed(self, channel: BulkChannel, posts: Sequence[Post]) -> list[BaseException | None]:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asyncio.gather(*map(channel.publish, posts), return_exceptions=True)
        except TimeoutError:
            why = streams_of(self._new)[0].blocked
            raise ConnectionError(f"it accepts no messages: {why}" if why else "no confirm") from None

    @asynccontextmanager
    async def _channel(self) -> AsyncIterator[BulkChannel]:
        async with self._channels:
            idle = self._idle_channels
            channel = idle.pop() if idle else await BulkChannel().open(self._new, confirms=True)
            yield channel
            if not channel.closed:
                idle.append(channel)

    async def bind_exchange(self, queue: str) -> None:
        """Make the fan-out exchange that leads to this queue only, and bind the queue to it."""
        name = fan_out_name(self.names, queue)
        try:
            channel = await open_channel(self._new, confirms=False)
            async with answered():
                await channel.declare_exchange(name, ExchangeType.FANOUT, durable=False)
                await (await channel.get_queue(queue, ensure=False)).bind(name)
                await channel.close()
        except RequestRefused as refused:
            if "no queue" not in str(refused):
                raise
            raise OperationRefused(
                f"RabbitMQ at {place(self.new_url)} has no queue {queue} any more: import the definitions of "
                "the old broker again"
            ) from None
        self._exchanges.add(name)

    async def delete_exchanges(self) -> None:
        """Delete the temporary exchanges of this transfer. A restart of the broker deletes them too."""
        with suppress(*BROKEN, RequestRefused):
            channel = await open_channel(self._new, confirms=False)
            async with answered():
                for name in sorted(self._exchanges):
                    await channel.exchange_delete(name)


@dataclass(eq=False)
class QueueTransfer:
    """Forwards the messages of one queue in a transfer."""

    name: str
    _transfer: Transfer
    _source: BulkChannel
    _received: deque[Arrived] = field(default_factory=deque)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _publishing: int = 0
    _is_finishing: bool = False
    _returns: int = 0  # number of batches with messages that the new broker returned

    @property
    def in_hand(self) -> int:
        return len(self._received) + self._publishing

    def receive(self, message: Arrived) -> None:
        self._received.append(message)
        self._transfer.on_received(message)
        self._changed.set()

    def finish(self) -> None:
        """Make `run` return when all received messages are forwarded."""
        self._is_finishing = True
        self._changed.set()

    async def run(self) -> None:
        """Publish received messages in order, and acknowledge each when the new broker has confirmed it."""
        while True:
            while not self._received:
                if self._is_finishing:
                    return
                self._changed.clear()
                await self._changed.wait()
            messages = list(self._received)
            self._received.clear()
            self._publishing = len(messages)
            await self._forward(messages)
            self._transfer.on_forwarded(messages, self._source)
            self._publishing = 0

    async def _forward(self, messages: Sequence[Arrived]) -> None:
        """Publish messages again until the new broker has confirmed all of them."""
        backoff = Backoff(self._transfer.clock)
        posts = [self._post(message) for message in messages]
        while posts:
            results = await self._publish(posts)
            if any(isinstance(result, NoQueueBound) for result in results):
                await self._on_returned()
                posts = [self._post(message) for message in messages]  # all, because ids may be equal
                continue
            posts = [post for post, result in zip(posts, results, strict=True) if result is not None]
            if posts:
                log.warning("%s: the new broker refuses messages, the queue may be full", self.name)
                await backoff.pause()

    async def _publish(self, posts: Sequence[Post]) -> list[BaseException | None]:
        try:
            return await self._transfer.publish(posts)
        except BrokerRefused as refused:
            fan_out = fan_out_name(self._transfer.names, self.name)
            if f"no exchange '{fan_out}'" in str(refused):  # missing, or deleted by another forwarder
                await self._transfer.bind_exchange(self.name)
                return await self._publish(posts)
            raise BrokerRefused(f"messages of {self.name} cannot be forwarded: {refused}") from None

    async def _on_returned(self) -> None:
        """Count how often the new broker has returned messages because the queue lacks the binding that
        workers' queues have. From the second time on, bind a fan-out exchange to the queue.

        The worker that has just declared the queue may be about to bind it, so after the first return the
        messages are only published again.
        """
        self._returns += 1
        if self._returns > 1:
            await self._transfer.bind_exchange(self.name)
        await Backoff(self._transfer.clock).pause()

    def _post(self, message: Arrived) -> Post:
        names, user = self._transfer.names, self._transfer.user
        post = post_to_worker(message, names, self.name, user) if self._returns < 2 else None
        return post or post_unchanged(message, names, self.name, user)


async def _fail_when_lost(connection: AbstractConnection, url: str) -> None:
    why = await ended(connection)
    raise Unavailable(f"lost the connection to RabbitMQ at {place(url)}: {why}")

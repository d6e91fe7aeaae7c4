"""Hearing Ironic: a durable queue of our own on whichever exchange it sends its notifications to.

Ironic makes the exchange, durable or not, when it first sends. We never do: Ironic could not use one made
otherwise than it would make it. Until there is one we look for it again and again. One that is not durable
goes with its broker, and our binding with it: so the binding is made anew now and then, and whenever
notifications may have passed us by we say so, for only reading all nodes closes such a gap.

The queue is one for all replicas, of which RabbitMQ lets one hear at a time: what is said has an order. A
message is acknowledged when what comes of it is safe; what was not comes again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from aiormq import Channel, ChannelAccessRefused, ChannelNotFoundEntity, ChannelPreconditionFailed, Connection
from aiormq.abc import DeliveredMessage
from pamqp.common import FieldTable

from bus.clock import Clock
from bus.errors import BrokerRefused, Unavailable
from bus.rabbit.connection import (
    BROKEN,
    REFUSALS,
    broker_url,
    cancelled_by_us,
    dial,
    hang_up,
    open_channel,
    place,
    reason,
)
from bus.rabbit.link import Backoff
from ironic_sync.meters import GAPS

log = logging.getLogger(__name__)

EXCHANGE = "ironic"
TOPICS = ("ironic_versioned_notifications",)
QUEUE = "berth.ironic_sync"
PREFETCH = 1000
TOGETHER = 256  # messages, at most, that are heard as one
LOOK_SECONDS = 5.0  # between makings sure that we still hear
FIRST_LOOK_SECONDS = 0.1  # while there is no exchange, growing to the above
_NEVER = 1_000_000_000  # redeliveries: RabbitMQ 4 would drop after 20

Hear = Callable[[Sequence[bytes]], Awaitable[None]]
Gap = Callable[[], None]


class Notifications:
    """Ironic's notifications, for as long as `run` runs, however often the broker goes."""

    def __init__(
        self,
        url: str,
        *,
        exchange: str = EXCHANGE,
        topics: Sequence[str] = TOPICS,
        queue: str = QUEUE,
        quorum: bool = True,
        kept_seconds: float | None = None,
        look_seconds: float = LOOK_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self._url = broker_url(url, "berth ironic_sync")
        self._exchange = exchange
        self._topics = tuple(topics)
        self._queue = queue
        self._quorum = quorum
        self._kept_seconds = kept_seconds  # without us; then the broker drops our queue
        self._look_seconds = look_seconds
        self._clock = clock or Clock()
        self._waiting = False  # we have said that there is no exchange
        self._complaint = ""  # what we last said about the broker

    async def run(self, hear: Hear, gap: Gap) -> None:
        """Hand what is said to `hear`, in order; call `gap` when something may have passed us by."""
        backoff = Backoff(self._clock)
        while True:
            try:
                connection = await dial(self._url)
                try:
                    backoff = Backoff(self._clock)
                    await self._attend(connection, hear, gap)
                finally:
                    await hang_up(connection)
            except (Unavailable, BrokerRefused) as problem:
                if str(problem) != self._complaint:
                    log.warning("not hearing Ironic: %s; trying again until it works", problem)
                self._complaint = str(problem)
            await backoff.pause()

    async def _attend(self, connection: Connection, hear: Hear, gap: Gap) -> None:
        """Hear over this connection until it ends."""
        loop = asyncio.get_running_loop()
        with self._plainly():
            ear = await self._listen(connection)
        bound, pause, look_at = False, FIRST_LOOK_SECONDS, 0.0
        while True:
            if loop.time() >= look_at:
                with self._plainly():
                    before, bound = bound, await self._bind(connection)
                if bound and not before:
                    GAPS.inc()
                    gap()
                pause = self._look_seconds if bound else min(2 * pause, self._look_seconds)
                look_at = loop.time() + pause
            bodies, tag = await ear.next(look_at)
            if bodies:
                await hear(bodies)
            with self._plainly():
                ear.check()
                if bodies:
                    await ear.channel.basic_ack(tag, multiple=True, wait=False)

    async def _listen(self, connection: Connection) -> "_Ear":
        """Read our queue, which is made if need be; one that is there serves as it is."""
        kind: FieldTable = {"x-queue-type": "classic"}
        if self._quorum:
            kind = {"x-queue-type": "quorum", "x-delivery-limit": _NEVER}
        if self._kept_seconds is not None:
            kind = {**kind, "x-expires": int(self._kept_seconds * 1000)}
        channel = await open_channel(connection, confirms=False)
        try:
            arguments = {**kind, "x-single-active-consumer": True}
            await channel.queue_declare(self._queue, durable=True, arguments=arguments)
        except (ChannelPreconditionFailed, ChannelAccessRefused):
            channel = await open_channel(connection, confirms=False)
            await channel.queue_declare(self._queue, passive=True)
        ear = _Ear(channel)
        await channel.basic_qos(prefetch_count=PREFETCH)
        await channel.basic_consume(self._queue, ear.heard)
        return ear

    async def _bind(self, connection: Connection) -> bool:
        """Is there an exchange to hear? Then its topics come to our queue, and nothing else of it."""
        channel = await open_channel(connection, confirms=False)
        try:
            for topic in self._topics:
                await channel.queue_bind(self._queue, self._exchange, f"{topic}.*")
        except ChannelNotFoundEntity as missing:
            if "no exchange" not in reason(missing):
                raise
            if not self._waiting:
                self._waiting = True
                log.warning(
                    "RabbitMQ at %s has no exchange %r: Ironic makes it when it first sends a notification, "
                    "which takes a notification_level in its configuration; waiting for it",
                    place(self._url),
                    self._exchange,
                )
            return False
        if self._waiting or self._complaint:
            log.warning("hearing Ironic on the exchange %r at %s", self._exchange, place(self._url))
        self._waiting, self._complaint = False, ""
        await channel.close()
        return True

    @contextmanager
    def _plainly(self) -> Iterator[None]:
        """What goes wrong with the broker, as one of two kinds."""
        try:
            yield
        except REFUSALS as refusal:
            raise BrokerRefused(f"RabbitMQ at {place(self._url)} refuses: {reason(refusal)}") from None
        except BROKEN as problem:
            if cancelled_by_us(problem):
                raise
            raise Unavailable(f"RabbitMQ at {place(self._url)} broke off: {reason(problem)}") from None


class _Ear:
    """What has come over one channel and was not taken yet."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._over = False
        self._messages: deque[DeliveredMessage] = deque()
        self._wake = asyncio.Event()
        channel.closing.add_done_callback(self._end)
        channel.on_consumer_cancel_callbacks.add(self._end)

    async def heard(self, message: DeliveredMessage) -> None:
        self._messages.append(message)
        self._wake.set()

    async def next(self, until: float) -> tuple[list[bytes], int]:
        """The oldest messages, and the tag of the last; none if none comes until then, or ever again."""
        if not self._messages and not self._over:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._wake.wait()
        taken = [self._messages.popleft() for _ in range(min(len(self._messages), TOGETHER))]
        return [bytes(one.body) for one in taken], (taken[-1].delivery_tag or 0) if taken else 0

    def check(self) -> None:
        """Raises when nothing will come any more."""
        if self._over:
            raise ConnectionError("nothing comes from it any more")

    def _end(self, _: object = None) -> None:
        self._over = True
        self._wake.set()

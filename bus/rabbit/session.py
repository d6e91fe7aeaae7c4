"""One connection to the broker, with its channels. Checks periodically that all declared objects exist."""

import asyncio
import logging
from contextlib import suppress

from aio_pika.abc import AbstractConnection

from bus.errors import BrokerRefused
from bus.rabbit.connection import ANSWER_SECONDS, BROKEN, RequestRefused, cancelled_by_us, reason
from bus.rabbit.fast_channels.channel import BulkChannel
from bus.rabbit.fast_channels.frames import NotTaken, Post
from bus.rabbit.topology import Declared, ExchangeMissing, Topology

log = logging.getLogger(__name__)

_CHECKS_A_ROUND = 15
# After this time a confirm counts as lost: only a broker without memory or disk space needs longer.
UNCONFIRMED_SECONDS = ANSWER_SECONDS


class Session:
    def __init__(
        self, connection: AbstractConnection, topology: Topology, declared: Declared, poll_seconds: float
    ) -> None:
        self.connection = connection
        self.topology = topology
        self.whole = asyncio.Event()  # not set while an exchange is known to be missing
        self.whole.set()
        self.redeclarations = 0  # how often missing exchanges were declared again
        self._declared = declared
        self._poll_seconds = poll_seconds
        self._missed = asyncio.Event()
        self._publisher: BulkChannel | None = None
        self._opening = asyncio.Lock()
        self._apart = asyncio.Lock()
        self._under_way: set[str | None] = set()
        self._oldest: tuple[BulkChannel, int] | None = None  # oldest unconfirmed message at the last check
        self._oldest_since = 0.0

    async def channel(self) -> BulkChannel:
        """Open and return a new AMQP channel for consuming."""
        return await BulkChannel().open(self.connection, confirms=False)

    async def publish(self, post: Post, *, apart: bool) -> None:
        """Publish a message and wait for the broker's confirm; with `apart`, on a separate channel."""
        id_ = post.properties.message_id
        # Two messages with one id cannot share a channel: a returned message is identified by its id.
        if apart or id_ in self._under_way:
            async with self._apart:
                extra_channel = await BulkChannel().open(self.connection, confirms=True)
                try:
                    async with asyncio.timeout(UNCONFIRMED_SECONDS):
                        await extra_channel.publish(post)
                finally:
                    if not extra_channel.closed:
                        with suppress(TimeoutError):
                            await extra_channel.close()
            return
        self._under_way.add(id_)
        try:
            channel = self._publisher
            if channel is None or channel.closed:
                channel = await self.open_publisher()
            try:
                await channel.publish(post)
            except NotTaken:
                await self._publish_refused(post, channel)
        finally:
            self._under_way.discard(id_)

    async def _publish_refused(self, post: Post, refused_by: BulkChannel) -> None:
        """Publish a message on another channel after the broker refused it on `refused_by`. If the broker
        confirms the message there, the other channel replaces `refused_by` for all messages.

        RabbitMQ 3.10: if the first message of a channel for a quorum queue arrives between the failure of the
        leader's node and the election of the next leader, the channel refuses all messages for that queue
        until the node is back.
        """
        async with self._apart:
            if refused_by is self._publisher:
                channel = await BulkChannel().open(self.connection, confirms=True)
                try:
                    async with asyncio.timeout(UNCONFIRMED_SECONDS):
                        await channel.publish(post)
                except BaseException:
                    await self._discard(channel, "the broker refused a message")
                    raise
                log.warning("the broker refuses messages on one channel: it is replaced by another")
                self._publisher = channel
                await self._discard(refused_by, "its channel was replaced")
                return
        await (await self.open_publisher()).publish(post)

    async def _discard(self, channel: BulkChannel, why: str) -> None:
        """Close a publisher's channel; senders of its unconfirmed messages publish them again."""
        channel.fail_confirms(ConnectionError(why))
        try:
            if not channel.closed:
                await channel.close()
        except BROKEN as problem:
            if cancelled_by_us(problem):
                raise

    async def open_publisher(self) -> BulkChannel:
        async with self._opening:
            if self._publisher is None or self._publisher.closed:
                self._publisher = await BulkChannel().open(self.connection, confirms=True)
            return self._publisher

    async def _mind_the_unconfirmed(self) -> None:
        """If confirms are overdue, make the senders publish their messages again: a confirm may be lost."""
        channel, now = self._publisher, asyncio.get_running_loop().time()
        oldest = (channel, channel.oldest) if channel is not None and channel.oldest else None
        if channel is None or oldest is None or oldest != self._oldest:
            self._oldest, self._oldest_since = oldest, now
            return
        waited = now - self._oldest_since
        if waited < UNCONFIRMED_SECONDS:
            return
        log.warning("messages are unconfirmed for %g s: they are sent again", waited)
        self._oldest = self._publisher = None
        await self._discard(channel, "it was not confirmed")

    async def declare_all(self) -> None:
        """Declare again all exchanges, queues and bindings of this process."""
        self.topology.forget()
        await self.topology.base(self._declared.central)
        if self._declared.dead:
            await self.topology.dead()
        for milliseconds in sorted(self._declared.delays):
            await self.topology.delay(milliseconds)
        for spec in tuple(self._declared.queues.values()):
            if spec.name not in self._declared.queues:
                continue  # removed from the declarations in the meantime
            try:
                await self.topology.queue(spec)
            except RequestRefused as refused:
                # The broker has not noticed yet that the previous connection has ended; the reader retries.
                log.info("the private queue %s still belongs to our last connection: %s", spec.name, refused)

    async def settle_in(self) -> None:
        """Declare all exchanges, queues and bindings of this process on a new connection.

        If only some of berth's exchanges exist, another process is declaring them, or an exchange was
        deleted. Wait at most two polling intervals until all exist; after the declarations, wait two
        intervals more, so that the other processes can bind their queues again.
        """
        was_whole = True
        for _ in range(40):
            missing = await self.topology.missing(delays=False)
            if len(missing) in (0, 3):
                break
            was_whole = False
            await asyncio.sleep(self._poll_seconds / 20)
        await self.declare_all()
        if not was_whole:
            await asyncio.sleep(2 * self._poll_seconds)

    def missed(self, redeclarations: int) -> None:
        """Make this process stop publishing, because the caller found an exchange missing. Do nothing if
        exchanges were declared again since the caller read the counter `redeclarations`.
        """
        if redeclarations == self.redeclarations:
            self.whole.clear()
            self._missed.set()

    async def watch(self) -> None:
        """Check periodically that the declared exchanges exist, and if not, declare everything again.

        The broker does not report a deleted exchange, and a recreated exchange has no bindings. So a process
        that finds an exchange missing stops publishing and waits two checks, until all other processes have
        stopped too. The process then declares everything, and publishes again a check later, when all queues
        are bound. A deleted binding cannot be detected: all bindings are declared again every few checks.
        """
        while True:
            for _ in range(_CHECKS_A_ROUND):
                await self._check_health()
            await self._again()

    async def _check_health(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._poll_seconds):
                await self._missed.wait()
        await self._mind_the_unconfirmed()
        if not self._missed.is_set():
            try:
                missing = await self.topology.missing(
                    delays=bool(self._declared.delays), clients=self._declared.serves_clients
                )
            except (*BROKEN, BrokerRefused) as problem:
                if cancelled_by_us(problem):
                    raise
                log.info("the exchanges could not be checked: %s", reason(problem))
                return
            if not missing:
                return
        await self._mend()

    async def _mend(self) -> None:
        self.whole.clear()
        log.warning("an exchange was deleted from the broker: all exchanges and queues are declared again")
        while True:
            await asyncio.sleep(2 * self._poll_seconds)
            if await self._again():
                break
        await asyncio.sleep(self._poll_seconds)
        self._missed.clear()
        self.redeclarations += 1
        self.whole.set()

    async def _again(self) -> bool:
        """Declare all exchanges, queues and bindings again. Return False if that failed."""
        try:
            await self.declare_all()
        except (*BROKEN, BrokerRefused, RequestRefused, ExchangeMissing) as problem:
            if cancelled_by_us(problem):
                raise
            log.warning("could not declare everything again: %s", reason(problem))
            return False
        return True

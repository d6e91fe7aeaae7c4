"""Deliver what a delay released while its queue could not be reached, or bury it if that queue was deleted.

When RabbitMQ starts it recovers queues before their bindings. A delay that ends in between finds no queue, so
the broker puts the message into <exchange>.dead.0. It accepts connections only after the recovery, so a
message that is sent once more by then, and still cannot be routed, is for a queue that does not exist.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from bus.backoff import Backoff
from bus.errors import BrokerRefused, Unavailable, Unroutable
from bus.protocol import DeadLetter, Envelope
from bus.rabbit.amqp_messages import letter_in, open_message
from bus.rabbit.reconnecting import Link
from bus.rabbit.session import Session
from bus.rabbit.wire import Arrived

log = logging.getLogger(__name__)

_PREFETCH = 32


class UnroutedMessages:
    """The reader of <exchange>.dead.0, in the process that keeps the broker's shared queues."""

    def __init__(
        self,
        link: Link,
        send: Callable[[str, Sequence[Envelope]], Awaitable[None]],
        store_dead_letter: Callable[[DeadLetter], Awaitable[None]],
    ) -> None:
        self._link = link
        self._send = send
        self._bury = store_dead_letter

    async def run(self) -> None:
        backoff = Backoff(self._link.clock)
        while True:
            try:
                await self._link.insist(self._read)
            except Unavailable:
                return  # we close
            except BrokerRefused as problem:
                log.warning("%s: %s; trying again", self._link.names.unrouted, problem)
            await backoff.pause()

    async def _read(self, session: Session) -> None:
        """Read until the channel ends, which raises ConnectionError."""
        await session.topology.unrouted()
        channel = await session.channel()
        arrived: asyncio.Queue[Arrived | None] = asyncio.Queue()
        channel.when_closed(lambda: arrived.put_nowait(None))
        channel.when_cancelled(lambda _: arrived.put_nowait(None))
        await channel.consume(self._link.names.unrouted, _PREFETCH, arrived.put_nowait)
        while (message := await arrived.get()) is not None:
            await self._settle(message)
            await channel.ack(message.tag)
        await channel.close()
        raise ConnectionError("the channel has ended")

    async def _settle(self, message: Arrived) -> None:
        names = self._link.names
        queue = names.plain(message.key.partition(".")[2])
        envelopes, _ = open_message(message, queue)
        try:
            await self._send(queue, envelopes)
        except (Unroutable, BrokerRefused) as problem:
            log.info("%s: %s", names.unrouted, problem)
            await self._bury(letter_in(message, names))

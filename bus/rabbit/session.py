"""What lives as long as one connection: its channels, and all we ever declared, kept whole over it."""

import asyncio
import logging
from contextlib import suppress

from aio_pika.abc import AbstractConnection

from bus.errors import BrokerRefused
from bus.rabbit.connection import ANSWER_SECONDS, BROKEN, RequestRefused, cancelled_by_us, reason
from bus.rabbit.topology import Declared, ExchangeMissing, Topology
from bus.rabbit.underlay import BulkChannel
from bus.rabbit.wire import Post

log = logging.getLogger(__name__)

_LOOKS_TO_A_ROUND = 15
# A broker that lives confirms at once, but for one that is short of memory or disk.
UNCONFIRMED_SECONDS = ANSWER_SECONDS


class Session:
    def __init__(
        self, connection: AbstractConnection, topology: Topology, declared: Declared, look_seconds: float
    ) -> None:
        self.connection = connection
        self.topology = topology
        self.whole = asyncio.Event()  # nothing is known to be missing: publishing makes sense
        self.whole.set()
        self.mended = 0  # how often it was made whole again
        self._declared = declared
        self._look_seconds = look_seconds
        self._missed = asyncio.Event()
        self._publisher: BulkChannel | None = None
        self._opening = asyncio.Lock()
        self._apart = asyncio.Lock()
        self._under_way: set[str | None] = set()
        self._oldest: tuple[BulkChannel, int] | None = None  # unconfirmed, when somebody last looked
        self._oldest_since = 0.0

    async def channel(self) -> BulkChannel:
        """A channel to read from."""
        return await BulkChannel().open(self.connection, confirms=False)

    async def publish(self, post: Post, *, apart: bool) -> None:
        """Returns when the broker has confirmed it. `apart`: on a channel of its own."""
        id_ = post.properties.message_id
        if apart or id_ in self._under_way:  # returned messages are told apart by their ids
            async with self._apart:
                own = await BulkChannel().open(self.connection, confirms=True)
                try:
                    async with asyncio.timeout(UNCONFIRMED_SECONDS):
                        await own.publish(post)
                finally:
                    if not own.closed:
                        with suppress(TimeoutError):
                            await own.close()
            return
        self._under_way.add(id_)
        try:
            channel = self._publisher
            if channel is None or channel.closed:
                channel = await self.open_publisher()
            await channel.publish(post)
        finally:
            self._under_way.discard(id_)

    async def open_publisher(self) -> BulkChannel:
        async with self._opening:
            if self._publisher is None or self._publisher.closed:
                self._publisher = await BulkChannel().open(self.connection, confirms=True)
            return self._publisher

    async def _mind_the_unconfirmed(self) -> None:
        """What the broker has confirmed neither way for long is sent again: it may have lost that confirm."""
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
        channel.give_up(ConnectionError("it was not confirmed"))
        try:
            await channel.close()
        except BROKEN as problem:
            if cancelled_by_us(problem):
                raise

    # What is declared

    async def declare_all(self) -> None:
        """All that was ever declared, whatever of it is there already."""
        self.topology.forget()
        await self.topology.base(self._declared.central)
        if self._declared.dead:
            await self.topology.dead()
        for milliseconds in sorted(self._declared.delays):
            await self.topology.delay(milliseconds)
        for spec in tuple(self._declared.queues.values()):
            if spec.name not in self._declared.queues:
                continue  # given up meanwhile
            try:
                await self.topology.queue(spec)
            except RequestRefused as refused:
                # the broker has not noticed yet that our last connection is gone; its reader will insist
                log.info("the private queue %s still belongs to our last connection: %s", spec.name, refused)

    async def settle_in(self) -> None:
        """Over a new connection: declare all, and where some exchanges were missing wait as `watch` does.

        Somebody who is just making our exchanges for the first time has soon made them all. One that was
        deleted is missed by all others within a look, and they bind their queues again two looks later.
        """
        was_whole = True
        for _ in range(40):
            missing = await self.topology.missing(delays=False)
            if len(missing) in (0, 3):
                break
            was_whole = False
            await asyncio.sleep(self._look_seconds / 20)
        await self.declare_all()
        if not was_whole:
            await asyncio.sleep(2 * self._look_seconds)

    def missed(self, mended: int) -> None:
        """An exchange of ours was not there, so many mendings ago."""
        if mended == self.mended:
            self.whole.clear()
            self._missed.set()

    async def watch(self) -> None:
        """Look now and then whether what we declared is there, and make it again as a whole if it is not.

        Nobody is told that an exchange was deleted, and one that is made again has none of the bindings.
        So whoever misses one makes nothing for two looks: by then all others have missed it, too. And it
        publishes nothing until a look later, when all of them hear again. A binding that is gone cannot be
        looked for: all are made again every few looks.
        """
        while True:
            for _ in range(_LOOKS_TO_A_ROUND):
                await self._look()
            await self._again()

    async def _look(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._look_seconds):
                await self._missed.wait()
        await self._mind_the_unconfirmed()
        if not self._missed.is_set():
            try:
                missing = await self.topology.missing(delays=bool(self._declared.delays))
            except (*BROKEN, BrokerRefused) as problem:
                if cancelled_by_us(problem):
                    raise
                log.info("could not look after our exchanges: %s", reason(problem))
                return
            if not missing:
                return
        await self._mend()

    async def _mend(self) -> None:
        self.whole.clear()
        log.warning("an exchange of ours is gone from the broker: all we declared is declared again")
        while True:
            await asyncio.sleep(2 * self._look_seconds)
            if await self._again():
                break
        await asyncio.sleep(self._look_seconds)
        self._missed.clear()
        self.mended += 1
        self.whole.set()

    async def _again(self) -> bool:
        """Declare it all again. False when that could not be done now."""
        try:
            await self.declare_all()
        except (*BROKEN, BrokerRefused, RequestRefused, ExchangeMissing) as problem:
            if cancelled_by_us(problem):
                raise
            log.warning("could not declare everything again: %s", reason(problem))
            return False
        return True

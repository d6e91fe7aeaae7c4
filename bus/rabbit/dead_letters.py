"""Stores, lists and removes the dead letters in the dead-letter queue. Also sends delayed messages again if
their queue was missing after the delay.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from bus.clock import Backoff, set_within
from bus.errors import BrokerRefused, NoSuchLetter, Unavailable, Unroutable
from bus.protocol import DeadLetter, Envelope
from bus.rabbit.amqp_messages import letter_id, letter_in, open_message, properties_of_letter
from bus.rabbit.connection import BROKEN, cancelled_by_us
from bus.rabbit.fast_channels.channel import BulkChannel
from bus.rabbit.fast_channels.frames import Arrived, Post
from bus.rabbit.reconnecting import Link, Session
from bus.rabbit.topology import letter_key
from bus.worker import cell_of

Rescue = Callable[[DeadLetter], Awaitable[bool]]

_AT_FIRST = 32  # size of the first batch of letters, which may be a megabyte each
_AT_MOST = 1024
_SMALL_BYTES = 1024 * 1024  # after a batch below this size, the next batch has twice as many letters
_FETCHING_SECONDS = 2.0  # limit for fetching a batch, because another reader may hold some of its letters


class DeadLetterQueue:
    """Stores, reads and removes dead letters in a queue of RabbitMQ."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._name = link.names.dead
        self._one_at_a_time = asyncio.Lock()  # a reader does not get letters that another one has fetched

    async def store_dead_letter(self, dead: DeadLetter) -> None:
        post = Post(
            self._name,
            letter_key(cell_of(dead.queue)),
            dead.body,
            properties_of_letter(dead, self._link.user),
            mandatory=True,
        )
        await self._link.insist_on_queue(self._link.declare_dead, partial(self._link.post, post))

    async def each(self, after: str, beginning: str) -> AsyncGenerator[DeadLetter, None]:
        """Yield the dead letters after the id `after` (empty: from the oldest) with ids that start with
        `beginning`, without removing them; continue after a reconnect. Raise NoSuchLetter if no letter has
        the id `after`.
        """
        await self._link.declare_dead()
        met: set[str] = set()  # ids, because a letter may be stored twice, or be fetched again
        reached = not after
        backoff = Backoff(self._link.clock)
        async with self._one_at_a_time:
            while True:
                session = await self._link.session()
                try:
                    async with _Walk(session, self._name) as walk, aclosing(walk.letters()) as messages:
                        async for message in messages:
                            id_ = letter_id(message)
                            if id_ in met:
                                continue
                            met.add(id_)
                            if reached and id_.startswith(beginning):
                                yield letter_in(message, self._link.names)
                            reached = reached or id_ == after
                    break
                except BROKEN as problem:
                    if cancelled_by_us(problem):
                        raise
                await backoff.pause()
        if not reached:
            raise NoSuchLetter(f"there is no dead letter {after} any more; begin again with the oldest")

    async def remove_dead_letters(self, ids: Collection[str] | None, rescue: Rescue | None) -> int:
        """Remove letters, all if `ids` is None; a letter for which `rescue` returns False stays. Return their
        number.
        """
        wanted = None if ids is None else set(ids)
        rescued = dict[str, float]()  # id of a rescued letter → time at which it became a dead letter
        staying = set[str]()

        async def take(session: Session) -> Exception | None:
            async with _Walk(session, self._name) as walk, aclosing(walk.letters()) as letters:
                async for message in letters:
                    dead = letter_in(message, self._link.names)
                    if (wanted is not None and dead.id not in wanted) or dead.id in staying:
                        continue
                    if rescue is not None and rescued.get(dead.id, dead.died) != dead.died:
                        continue  # a new letter with the same id: the replayed message has failed again
                    if rescue is not None and dead.id not in rescued:
                        try:
                            removed = await rescue(dead)
                        except Exception as failure:  # returned, so that `insist` does not repeat the action
                            return failure
                        if not removed:
                            staying.add(dead.id)
                            continue
                    rescued[dead.id] = dead.died
                    await walk.remove(message)
            return None

        await self._link.declare_dead()
        async with self._one_at_a_time:
            failure = await self._link.insist(take)
        if failure is not None:
            raise failure
        return len(rescued)


@dataclass(eq=False)
class _Walk:
    """Fetches each message of the dead-letter queue once, oldest first. Messages that are not removed keep
    their position in the queue.
    """

    _session: Session
    _name: str
    _channel: BulkChannel = field(init=False)
    _held: dict[int, None] = field(default_factory=dict)

    async def __aenter__(self) -> "_Walk":
        self._session.topology.forget()  # the queue may have been deleted
        await self._session.topology.dead()
        self._channel = await self._session.channel()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._held:
                self._channel.nack(max(self._held), multiple=True)
            await self._channel.close()
        except BROKEN as problem:
            if cancelled_by_us(problem):
                raise

    async def letters(self) -> AsyncGenerator[Arrived]:
        """Yield each dead letter once, fetched in batches that fit into memory."""
        depth, size = self._session.topology.depth, _AT_FIRST
        left, _ = await depth(self._name)
        while True:
            fetched = await (self._fetch(min(size, left)) if left > 0 else self._next_letters())
            if not fetched:
                return
            left, _ = await depth(self._name)
            if sum(len(message.body) for message in fetched) < _SMALL_BYTES:
                size = min(2 * size, _AT_MOST)
            for message in fetched:
                yield message

    async def remove(self, message: Arrived) -> None:
        self._channel.ack(message.tag)
        del self._held[message.tag]

    async def _fetch(self, count: int) -> list[Arrived]:
        """Return up to `count` next dead letters, unacknowledged until removed or the channel closes."""
        fetched: list[Arrived] = []
        enough = asyncio.Event()

        def handle(message: Arrived) -> None:
            self._held[message.tag] = None
            fetched.append(message)
            if len(fetched) == count:
                enough.set()

        consumer = await self._channel.consume(self._name, count, handle)
        await set_within(enough, _FETCHING_SECONDS)
        await self._channel.cancel(consumer)
        return fetched or await self._next_letters()

    async def _next_letters(self) -> list[Arrived]:
        """Return a list with the next dead letter, or an empty list at the end of the queue."""
        message = await self._channel.get(self._name)
        if message is None:
            return []
        self._held[message.tag] = None
        return [message]


log = logging.getLogger(__name__)

_PREFETCH = 32


@dataclass(eq=False)
class UnroutedMessages:
    """Consumes <exchange>.dead.0, the queue of delayed messages that found their target queue missing after
    the delay. Sends each message to the target queue again; if that is still missing, makes the message a
    dead letter. Runs in the process that declares the queues that all workers share.
    """

    _link: Link
    _send: Callable[[str, Sequence[Envelope]], Awaitable[None]]
    _bury: Callable[[DeadLetter], Awaitable[None]]

    async def run(self) -> None:
        """Read the queue of messages without a consumer until cancelled; reconnect after failures."""
        backoff = Backoff(self._link.clock)
        while True:
            try:
                await self._link.insist(self._read)
            except Unavailable:
                return  # the connection is being closed
            except BrokerRefused as problem:
                log.warning("%s: %s; trying again", self._link.names.unrouted, problem)
            await backoff.pause()

    async def _read(self, session: Session) -> None:
        """Send the messages in <exchange>.dead.0 to their target queues again until the channel closes, then
        raise ConnectionError.
        """
        await session.topology.unrouted()
        channel = await session.channel()
        arrived: asyncio.Queue[Arrived | None] = asyncio.Queue()
        channel.when_closed(lambda: arrived.put_nowait(None))
        channel.when_cancelled(lambda _: arrived.put_nowait(None))
        await channel.consume(self._link.names.unrouted, _PREFETCH, arrived.put_nowait)
        while (message := await arrived.get()) is not None:
            await self._settle(message)
            channel.ack(message.tag)
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

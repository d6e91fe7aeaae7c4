"""Our way to the broker: one connection at a time, opened again whenever it breaks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import aiormq
from aiormq import Channel, Connection
from pamqp.commands import Basic
from yarl import URL

from bus.clock import Clock, monotonic
from bus.errors import BrokerRefused, Unavailable, Unroutable
from bus.protocol import QueueSpec
from bus.rabbit.connection import (
    BROKEN,
    REFUSALS,
    BadCredentials,
    cancelled_by_us,
    dial,
    hang_up,
    open_channel,
    place,
    reason,
)
from bus.rabbit.topology import BrokerNames, Topology

log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_RESTORING = 60.0  # for declaring everything again: a queue without a leader answers late, or never
_NACKS = 8  # a broker that refuses a message so often, with growing pauses, is unavailable


@dataclass(frozen=True, slots=True)
class Post:
    """One AMQP message on its way out."""

    exchange: str
    key: str
    body: bytes
    properties: Basic.Properties
    mandatory: bool


class Backoff:
    """Pauses that grow from 0.1 s to 5 s, each shortened by chance so that clients do not come in step."""

    def __init__(self, clock: Clock) -> None:
        self._chance = clock.chance
        self._next = _FIRST_PAUSE

    async def pause(self) -> None:
        await asyncio.sleep(self._next * (0.5 + self._chance.random() / 2))
        self._next = min(self._next * 2, _LONGEST_PAUSE)


class Session:
    """What lives as long as one connection."""

    def __init__(self, connection: Connection, topology: Topology) -> None:
        self.connection = connection
        self.topology = topology
        self._publisher: Channel | None = None
        self._opening = asyncio.Lock()
        self._apart = asyncio.Lock()
        self._under_way: set[str | None] = set()

    async def channel(self) -> Channel:
        """A channel to read from."""
        return await open_channel(self.connection, confirms=False)

    async def publish(self, post: Post, *, apart: bool) -> None:
        """Returns when the broker has confirmed it. `apart`: on a channel of its own."""
        id_ = post.properties.message_id
        if apart or id_ in self._under_way:  # aiormq tells returned messages apart by their ids
            async with self._apart:
                own = await open_channel(self.connection, confirms=True)
                try:
                    await _publish(own, post)
                finally:
                    if not own.is_closed:
                        await own.close()
            return
        self._under_way.add(id_)
        try:
            channel = self._publisher
            if channel is None or channel.is_closed:
                channel = await self.open_publisher()
            await _publish(channel, post)
        finally:
            self._under_way.discard(id_)

    async def over(self) -> str:
        """Why the connection has ended, once it has. Looks for itself, in case nobody tells."""
        closing = self.connection.closing
        while not closing.done() and self.connection.is_opened:
            await asyncio.wait([closing], timeout=1.0)
        why = closing.exception() if closing.done() and not closing.cancelled() else None
        closing.cancel()
        return reason(why) if isinstance(why, Exception) else "it fell silent"

    async def open_publisher(self) -> Channel:
        async with self._opening:
            if self._publisher is None or self._publisher.is_closed:
                self._publisher = await open_channel(self.connection, confirms=True)
            return self._publisher


async def _declare(spec: QueueSpec, session: Session) -> None:
    await session.topology.queue(spec)


async def _publish(channel: Channel, post: Post) -> None:
    await channel.basic_publish(
        post.body,
        exchange=post.exchange,
        routing_key=post.key,
        properties=post.properties,
        mandatory=post.mandatory,
        wait=False,
    )


class Link:
    """Keeps a session open, declares in each what was ever declared, and acts in whichever there is."""

    def __init__(self, url: URL, names: BrokerNames, *, quorum: bool, clock: Clock) -> None:
        self.names = names
        self.clock = clock
        self.place = place(url)
        self._url = url
        self._quorum = quorum
        self._declared: dict[str, QueueSpec] = {}
        self._session: Session | None = None
        self._changed = asyncio.Event()  # there is a session, or there will be none any more
        self.closed = True
        self._group: asyncio.TaskGroup
        self._life: asyncio.Task[None] | None = None

    async def open(self, patience: float) -> None:
        """Connect, trying for so many seconds; from then on stay connected."""
        session = await self._first(patience)
        self.closed = False
        started = asyncio.Event()
        # Whoever opens and closes us may do so in different tasks, which a TaskGroup does not allow: so one
        # task of our own holds the group that everything else runs in.
        self._life = asyncio.create_task(self._live(session, started))  # noqa: TID251  see above
        await started.wait()

    async def close(self) -> None:
        self.closed = True
        self._changed.set()
        session, self._session = self._session, None
        if session is not None:  # first, so that nobody is cancelled in the middle of a request to the broker
            await hang_up(session.connection)
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait([self._life])
            self._life = None

    def check(self) -> None:
        if self.closed:
            raise Unavailable(f"the connection to RabbitMQ at {self.place} is closed")

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run this until it ends or we close."""
        return self._group.create_task(work)

    async def session(self) -> Session:
        """The session, as soon as there is one."""
        while True:
            self.check()
            if self._session is not None:
                return self._session
            self._changed.clear()
            await self._changed.wait()

    async def insist(self, action: Callable[[Session], Awaitable[T]]) -> T:
        """Do this, again after a reconnect if the connection breaks meanwhile."""
        backoff = Backoff(self.clock)
        while True:
            session = await self.session()
            try:
                return await action(session)
            except REFUSALS as refusal:
                raise BrokerRefused(f"RabbitMQ at {self.place} refuses: {reason(refusal)}") from None
            except BROKEN as problem:
                if cancelled_by_us(problem):
                    raise
                log.info("RabbitMQ at %s broke off: %s; trying again", self.place, reason(problem))
            await backoff.pause()

    def forget(self) -> None:
        """Something of ours on the broker turned out to be gone: make it again when it is needed."""
        if self._session is not None:
            self._session.topology.forget()

    async def declare(self, *specs: QueueSpec) -> None:
        for spec in specs:
            self._declared[spec.name] = spec
            await self.insist(partial(_declare, spec))

    def undeclare(self, spec: QueueSpec) -> None:
        """Nobody will read it any more: do not make it again after a reconnect."""
        self._declared.pop(spec.name, None)

    async def post(self, post: Post) -> None:
        """Returns when the broker has this message safe, however often the connection breaks meanwhile."""
        apart = False
        nacks = 0
        backoff = Backoff(self.clock)
        while True:
            session = await self.session()
            try:
                await session.publish(post, apart=apart)
                return
            except aiormq.PublishError:
                raise Unroutable(f"no queue hears {post.key}") from None
            except aiormq.DeliveryError:
                nacks += 1
                if nacks == _NACKS:
                    raise Unavailable(
                        f"RabbitMQ at {self.place} does not take messages for {post.key}"
                    ) from None
            except REFUSALS as refusal:
                # it closed the channel for everybody: find out by itself whether it is this message's fault
                if apart:
                    raise BrokerRefused(
                        f"RabbitMQ refuses a message for {post.key}: {reason(refusal)}"
                    ) from None
                apart = True
                continue
            except BROKEN as problem:
                if cancelled_by_us(problem):
                    raise
            await backoff.pause()

    async def _first(self, patience: float) -> Session:
        deadline = monotonic() + patience
        backoff = Backoff(self.clock)
        while True:
            try:
                return await self._connect()
            except BadCredentials:
                raise
            except Unavailable as problem:
                if monotonic() > deadline:
                    raise Unavailable(f"{problem} (tried for {patience:g} s)") from None
                log.info("%s; trying again", problem)
            await backoff.pause()

    async def _connect(self) -> Session:
        """A session in which everything declared is declared."""
        connection = await dial(self._url)
        session = Session(connection, Topology(connection, self.names, self._quorum))
        try:
            async with asyncio.timeout(_RESTORING):
                await self._restore(session)
        except BaseException as problem:
            await hang_up(connection)
            if isinstance(problem, BROKEN) and not cancelled_by_us(problem):
                raise Unavailable(f"RabbitMQ at {self.place} broke off: {reason(problem)}") from None
            raise
        log.info("connected to RabbitMQ at %s", self.place)
        return session

    async def _restore(self, session: Session) -> None:
        await session.open_publisher()  # now: who comes first shall be published first
        await session.topology.base()
        for spec in self._declared.values():
            try:
                await session.topology.queue(spec)
            except aiormq.ChannelLockedResource:
                # the broker has not noticed yet that our last connection is gone; its reader will insist
                log.info("the private queue %s still belongs to our last connection", spec.name)

    async def _live(self, session: Session, started: asyncio.Event) -> None:
        try:
            async with asyncio.TaskGroup() as self._group:
                started.set()
                while True:
                    self._session = session
                    self._changed.set()
                    why = await session.over()
                    self._session = None
                    if self.closed:
                        return
                    log.warning("lost the connection to RabbitMQ at %s: %s", self.place, why)
                    await hang_up(session.connection)
                    session = await self._reconnect()
        finally:
            self.closed = True
            self._changed.set()

    async def _reconnect(self) -> Session:
        backoff = Backoff(self.clock)
        while True:
            await backoff.pause()
            try:
                return await self._connect()
            except (Unavailable, BrokerRefused) as problem:
                log.warning("%s; trying again", problem)

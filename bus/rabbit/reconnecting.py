"""Keeps one connection to the broker open for a process: reconnects whenever it breaks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from prometheus_client import Counter, Gauge

from bus.broker_urls import place, user_of
from bus.clock import Backoff, Clock, monotonic
from bus.errors import BadCredentials, BrokerRefused, Unavailable, Unroutable
from bus.protocol import QueueSpec
from bus.rabbit.connection import (
    BROKEN,
    RequestRefused,
    address_of,
    avoid,
    cancelled_by_us,
    dial,
    ended,
    hang_up,
    reason,
)
from bus.rabbit.fast_channels.frames import NoQueueBound, NotTaken, Post
from bus.rabbit.session import Session
from bus.rabbit.topology import BrokerNames, Declared, ExchangeMissing, Topology

CONNECTIONS = Gauge("berth_broker_connections", "connections to RabbitMQ that are up", ["broker"])
LOST = Counter("berth_broker_connections_lost", "connections to RabbitMQ that broke off", ["broker"])


log = logging.getLogger(__name__)

T = TypeVar("T")

_RESTORING = 60.0  # limit for the declarations after a connection: a queue without a leader may never reply
_NACKS = 8  # after so many refusals of a message, with growing pauses between them, raise Unavailable


class Link:
    """A process's connection to the broker, reopened whenever it breaks; then all that the process declared
    (exchanges, queues, bindings) is declared again.
    """

    def __init__(
        self,
        url: str,
        names: BrokerNames,
        *,
        quorum: bool,
        poll_seconds: float,
        clock: Clock,
        declared: Declared,
    ) -> None:
        self.names = names
        self.clock = clock
        self.place = place(url)
        self.user = user_of(url)
        self._url = url
        self._quorum = quorum
        self._poll_seconds = poll_seconds
        self._declared = declared
        self._session: Session | None = None
        self._changed = asyncio.Event()  # set when a session begins or the link ends
        self.closed = True
        self.broken = False  # True: an unexpected exception has closed the link
        self._group: asyncio.TaskGroup
        self._life: asyncio.Task[None] | None = None

    async def open(self, patience: float) -> None:
        """Connect to the broker, or raise an error if that fails for `patience` seconds. From then on,
        reconnect whenever the connection breaks.
        """
        session = await self._first(patience)
        self.closed = False
        started = asyncio.Event()
        # A TaskGroup must be left in the task that entered it, but `open` and `close` can be called in
        # different tasks: a separate task contains the group.
        self._life = asyncio.create_task(self._live(session, started))  # noqa: TID251  see above
        await started.wait()

    async def close(self) -> None:
        self.closed = True
        self._changed.set()
        try:
            await self._leave()  # before the cancellation, so that requests to the broker are completed
        finally:
            if self._life is not None:
                self._life.cancel()
                await asyncio.wait([self._life])
                self._life = None

    async def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            try:
                async with session.topology.paused():
                    await hang_up(session.connection)
            finally:
                session.whole.set()

    def check(self) -> None:
        if self.broken:
            raise Unavailable(f"the connection to RabbitMQ at {self.place} ended by an error: see the log")
        if self.closed:
            raise Unavailable(f"the connection to RabbitMQ at {self.place} is closed")

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._group.create_task(work)

    async def session(self) -> Session:
        """Return the Session of the current connection; wait while the broker is unreachable."""
        while True:
            self.check()
            if self._session is not None:
                return self._session
            self._changed.clear()
            await self._changed.wait()

    async def insist(self, action: Callable[[Session], Awaitable[T]]) -> T:
        """Call an action with the connection, again after each reconnect until it succeeds; return the
        result. Raise BrokerRefused if the broker refuses the action.
        """
        backoff = Backoff(self.clock)
        while True:
            session = await self.session()
            redeclarations = session.redeclarations
            try:
                return await action(session)
            except RequestRefused as refused:
                raise BrokerRefused(f"RabbitMQ at {self.place} refuses: {refused}") from None
            except ExchangeMissing:
                session.missed(redeclarations)
                await session.whole.wait()
            except BROKEN as error:
                if cancelled_by_us(error):
                    raise
                log.info("RabbitMQ at %s broke off: %s; trying again", self.place, reason(error))
            await backoff.pause()

    async def undisturbed(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine to its end even if the caller is cancelled, because a cancelled request to the
        broker closes the AMQP channel. Return the result.
        """
        self.check()
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def do() -> None:
            error: Exception = Unavailable(f"the connection to RabbitMQ at {self.place} was closed")
            try:
                result = await work()
                if not outcome.done():
                    outcome.set_result(result)
            except Exception as found:  # `undisturbed` raises it in its caller
                error = found
            finally:
                if not outcome.done():
                    outcome.set_exception(error)

        self.spawn(do())
        return await outcome

    async def insist_on_queue(
        self, declare: Callable[[], Awaitable[None]], publish: Callable[[], Awaitable[None]]
    ) -> None:
        """Declare a queue and publish to it; if the queue was deleted in between, do both again."""
        await declare()
        try:
            await publish()
        except Unroutable:
            if self._session is not None:
                self._session.topology.forget()
            await declare()
            await publish()

    async def declare(self, *specs: QueueSpec) -> None:
        async def declare_next(session: Session) -> None:
            await session.topology.queue(spec)

        for spec in specs:
            self.declare_on_reconnect(spec)
            await self.insist(declare_next)

    def declare_on_reconnect(self, spec: QueueSpec) -> None:
        """Add this queue to the declarations that are repeated after a reconnect."""
        self._declared.queues[spec.name] = spec

    def undeclare(self, spec: QueueSpec) -> None:
        """Remove this queue from the declarations that are repeated after a reconnect."""
        self._declared.queues.pop(spec.name, None)

    async def declare_delay(self, milliseconds: int) -> None:
        self._declared.delays.add(milliseconds)
        await self.insist(lambda session: session.topology.delay(milliseconds))

    async def declare_dead(self) -> None:
        self._declared.dead = True
        await self.insist(lambda session: session.topology.dead())

    async def post(self, post: Post) -> None:
        """Publish a message, and again after each reconnect, until the broker confirms it."""
        apart = False
        nacks = 0
        backoff = Backoff(self.clock)
        while True:
            session = await self.session()
            await session.whole.wait()
            redeclarations = session.redeclarations
            try:
                await session.publish(post, apart=apart)
                return
            except NoQueueBound:
                raise Unroutable(f"no queue is bound to {post.key}") from None
            except NotTaken:
                nacks += 1
                if nacks == _NACKS:
                    raise Unavailable(
                        f"RabbitMQ at {self.place} does not take messages for {post.key}"
                    ) from None
            except RequestRefused as refused:
                # The refusal closed the shared channel: publish this message on a separate channel.
                if refused.code == "NOT_FOUND":
                    session.missed(redeclarations)
                elif apart:
                    raise BrokerRefused(f"RabbitMQ refuses a message for {post.key}: {refused}") from None
                apart = True
                continue
            except (ValueError, TypeError) as error:
                raise BrokerRefused(f"AMQP cannot carry a message for {post.key}: {error}") from None
            except BROKEN as error:
                if cancelled_by_us(error):
                    raise
            await backoff.pause()

    async def _first(self, patience: float) -> Session:
        deadline = monotonic() + patience
        backoff = Backoff(self.clock)
        log_problem = log.warning  # only the first time: tells a user at a terminal why the command waits
        while True:
            try:
                return await self._connect()
            except BadCredentials:
                raise
            except Unavailable as error:
                if monotonic() > deadline:
                    raise Unavailable(f"{error} (tried for {patience:g} s)") from None
                log_problem("%s; trying again for %g s", error, patience)
                log_problem = log.info
            await backoff.pause()

    async def _connect(self) -> Session:
        connection = await dial(self._url)
        topology = Topology(connection, self.names, self._quorum)
        session = Session(connection, topology, self._declared, self._poll_seconds)
        try:
            async with asyncio.timeout(_RESTORING):
                await session.open_publisher()  # before other callers, so that messages keep their order
                await session.settle_in()
        except BaseException as error:
            avoid(connection)
            await hang_up(connection)
            if isinstance(error, (*BROKEN, ExchangeMissing, RequestRefused)) and not cancelled_by_us(error):
                raise Unavailable(f"RabbitMQ at {self.place} broke off: {reason(error)}") from None
            raise
        log.info("connected to RabbitMQ at %s", address_of(connection))
        return session

    async def _live(self, session: Session, started: asyncio.Event) -> None:
        connections = CONNECTIONS.labels(self.place)
        try:
            async with asyncio.TaskGroup() as self._group:
                started.set()
                try:
                    while True:
                        self._session = session
                        self._changed.set()
                        watching = self._group.create_task(session.watch())
                        with connections.track_inprogress():
                            why = await ended(session.connection)
                        self._session = None
                        watching.cancel()
                        session.whole.set()  # wake callers, which then find the connection closed
                        if self.closed:
                            return
                        LOST.labels(self.place).inc()
                        at = address_of(session.connection)
                        log.warning("lost the connection to RabbitMQ at %s: %s", at, why)
                        await hang_up(session.connection)
                        session = await self._reconnect()
                finally:  # before the group waits for its tasks: they must not begin new requests
                    self.broken, self.closed = not self.closed, True
        except Exception:  # not raised, as no task awaits this one: users of the link see `broken`
            log.exception("the connection to RabbitMQ at %s ended by an error", self.place)
            await self._leave()
        finally:
            self._changed.set()

    async def _reconnect(self) -> Session:
        backoff = Backoff(self.clock)
        while True:
            await backoff.pause()
            try:
                return await self._connect()
            except (Unavailable, BrokerRefused) as error:
                log.warning("%s; trying again", error)

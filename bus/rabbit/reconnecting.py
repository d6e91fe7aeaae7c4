"""Keeps one connection to the broker open for a process: reconnects whenever it breaks, and checks
periodically that all declared objects exist.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from aio_pika.abc import AbstractConnection
from prometheus_client import Counter, Gauge

from bus.broker_urls import place, user_of
from bus.clock import Backoff, Clock, monotonic, set_within
from bus.errors import BadCredentials, BrokerRefused, Unavailable, Unroutable
from bus.protocol import QueueSpec
from bus.rabbit.connection import (
    ANSWER_SECONDS,
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
from bus.rabbit.fast_channels.channel import BulkChannel
from bus.rabbit.fast_channels.frames import NoQueueBound, NotTaken, Post
from bus.rabbit.topology import BrokerNames, Declared, ExchangeMissing, Topology

log = logging.getLogger(__name__)

CONNECTIONS = Gauge("berth_broker_connections", "connections to RabbitMQ that are up", ["broker"])
LOST = Counter("berth_broker_connections_lost", "connections to RabbitMQ that broke off", ["broker"])


T = TypeVar("T")

_RESTORING = 60.0  # limit for the declarations after a connection: a queue without a leader may never reply
_NACKS = 8  # after so many refusals of a message, with growing pauses between them, raise Unavailable
_CHECKS_A_ROUND = 15
# After this time a confirm counts as lost: only a broker without memory or disk space needs longer.
UNCONFIRMED_SECONDS = ANSWER_SECONDS


class Session:
    """One connection to the broker, with its channels."""

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
        """Return the channel for publications, opened at its first use and again after it was closed."""
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
            except BrokerRefused as refused:  # the reader retries; other queues must not wait for this queue
                log.warning("%s", refused)

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
        await set_within(self._missed, self._poll_seconds)
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


class PublishMethod(Protocol):
    """Publishes a message on a connection, and waits for the confirm; with `apart`, on a separate channel."""

    def __call__(self, session: Session, post: Post, /, *, apart: bool) -> Awaitable[None]: ...


class Link:
    """A process's connection to the broker, reopened whenever it breaks; then all that the process declared
    (exchanges, queues, bindings) is declared again.
    """

    def __init__(
        self, url: str, names: BrokerNames, *, quorum: bool, poll_seconds: float, declared: Declared
    ) -> None:
        self.names = names
        self.clock = Clock()
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
        """Raise Unavailable if the link is closed or its connection ended by an error."""
        if self.broken:
            raise Unavailable(f"the connection to RabbitMQ at {self.place} ended by an error: see the log")
        if self.closed:
            raise Unavailable(f"the connection to RabbitMQ at {self.place} is closed")

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that ends with the link."""
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
        """Declare queues now, and again after each reconnection."""

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
        """Declare the queue that delays messages for this time, now and after each reconnection."""
        self._declared.delays.add(milliseconds)
        await self.insist(lambda session: session.topology.delay(milliseconds))

    async def declare_dead(self) -> None:
        """Declare the queue of dead letters, now and after each reconnection."""
        self._declared.dead = True
        await self.insist(lambda session: session.topology.dead())

    async def post(self, post: Post, publish: PublishMethod = Session.publish) -> None:
        """Publish a message, and again after each reconnect, until the broker confirms it. `publish` does it
        on one connection.
        """
        apart = False
        nacks = 0
        backoff = Backoff(self.clock)
        while True:
            session = await self.session()
            await session.whole.wait()
            redeclarations = session.redeclarations
            try:
                await publish(session, post, apart=apart)
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

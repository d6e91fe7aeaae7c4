"""berth's objects on a broker: names, exchanges, queues, and how each is declared.

    <exchange>          every publication of berth's workers, with its routing key
    <exchange>.clients  the publications of clients; only the scheduler's queues for clients are bound to it
    <exchange>.queues   to one queue by name, under the key 0.<queue>
    <exchange>.delay    to one queue after a delay, under the key <ms>.<queue>, through the queue
                        <exchange>.delay.<ms>, which dead-letters expired messages to <exchange>.queues
    <exchange>.dead     the dead letters
    <exchange>.dead.0   a queue for delayed messages whose queue was missing: see `bus.rabbit.dead_letters`

The placement worker declares the dead-letter queue and the usual delay queues, for workers whose RabbitMQ
users lack the permission.

All five exchanges are topic exchanges, and the default exchange is not used, so that topic permissions can
state which keys a user may publish and bind, and which queues it may reach: RabbitMQ checks keys nowhere
else. A user needs `write` on exchanges to publish, and to consume a queue `configure`, `write` and `read` on
it and `read` on <exchange> and <exchange>.queues. An existing object that a user may not configure is used as
it is.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aio_pika import ExchangeType
from aio_pika.abc import AbstractChannel, AbstractConnection

from bus.errors import BrokerRefused
from bus.protocol import QueueSpec
from bus.rabbit.connection import RequestRefused, answered, open_channel
from bus.topics import is_of_client

log = logging.getLogger(__name__)

T = TypeVar("T")

DELAYS = (0.1, 0.5, 1, 5, 15, 60, 300, 1800)
MAX_DELAY = 24 * 3600
LETTER = "letter"  # routing key of dead letters; those of a cell's workers have the key `letter.CELL`
_PAUSE_SECONDS = 1.0  # limit of the wait for a declaration in progress
# Delivery limit: by default RabbitMQ 4 drops a message after 20 redeliveries. berth limits them itself.
_NEVER = 1_000_000_000


@dataclass(frozen=True, slots=True)
class BrokerNames:
    """The names of berth's objects on a broker, all derived from the exchange's name, so that several
    installations can share a virtual host.
    """

    exchange: str

    def queue(self, name: str) -> str:
        """Return a queue's name at the broker, given its name within berth (`*` becomes `+`)."""
        name = name.replace("*", "+")
        return name if self.exchange == "berth" else f"{self.exchange}:{name}"

    def key_for_reader(self, exchange: str, key: str) -> str:
        """Return the routing key that a consumer sees for a message published to `exchange` with `key`: the
        key itself, or if that exchange sends to one queue, the queue's name within berth.
        """
        if exchange not in (self.queues, self.delay):
            return key
        return self.plain(key.partition(".")[2])

    def exchange_of(self, key: str) -> str:
        """Return the exchange to which a message with this routing key is published."""
        return self.clients if is_of_client(key) else self.exchange

    @property
    def clients(self) -> str:
        """The exchange to which results for clients are published."""
        return f"{self.exchange}.clients"

    @property
    def queues(self) -> str:
        """The exchange that reaches a queue by its name."""
        return f"{self.exchange}.queues"

    @property
    def delay(self) -> str:
        """The exchange through which delayed messages return to their queue."""
        return f"{self.exchange}.delay"

    @property
    def dead(self) -> str:
        """The exchange and queue of dead letters."""
        return f"{self.exchange}.dead"

    @property
    def unrouted(self) -> str:
        """The queue of messages that no other queue has received."""
        return f"{self.dead}.0"

    def plain(self, queue: str) -> str:
        """Return a queue's name within berth, given its name at the broker."""
        return queue if self.exchange == "berth" else queue.removeprefix(f"{self.exchange}:")

    def address(self, queue: str, milliseconds: int = 0) -> str:
        """Return the routing key that sends a message to this queue after this delay in milliseconds."""
        return f"{milliseconds}.{self.queue(queue)}"


def letter_key(cell: str) -> str:
    """Return the routing key of dead letters of a cell; "" for those of the centre."""
    return f"{LETTER}.{cell}" if cell else LETTER


def delay_for(seconds: float) -> int:
    """Return the delay, in milliseconds, of the queue that delays a message by at least `seconds`: the
    shortest such delay, at most a day.
    """
    for delay in DELAYS:
        if seconds <= delay:
            return int(delay * 1000)
    longest = DELAYS[-1]
    return int(min(math.ceil(seconds / longest) * longest, MAX_DELAY) * 1000)


@dataclass(slots=True)
class Declared:
    """The queues that this process has declared on the broker, to be declared again after a reconnect."""

    queues: dict[str, QueueSpec] = field(default_factory=dict)
    delays: set[int] = field(default_factory=set)  # milliseconds
    dead: bool = False  # whether the dead-letter queue was declared
    central: tuple[QueueSpec, ...] = ()  # queues to declare before a missing exchange is declared

    @property
    def serves_clients(self) -> bool:
        """Return whether one of the queues receives what clients publish."""
        return any(is_of_client(key) for spec in self.queues.values() for key in spec.keys)


class ExchangeMissing(Exception):
    """Raised if an exchange that existed before was deleted from the broker."""


@dataclass(eq=False)
class Topology:
    """Declares exchanges, queues and bindings on one connection."""

    _connection: AbstractConnection
    names: BrokerNames
    _quorum: bool
    _channel: AbstractChannel | None = None
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _made: set[str] = field(default_factory=set)
    _dead_is_ours: bool = False

    async def missing(self, *, delays: bool, clients: bool = False) -> list[str]:
        """Return the names of berth's exchanges that do not exist; with `delays` or `clients`, check the
        exchange of delayed messages or of clients too.
        """
        names = self.names
        wanted = [names.exchange, names.dead, names.queues]
        wanted += [names.delay] * delays + [names.clients] * clients
        async with self._one_at_a_time:
            return [name for name in wanted if not await self._exists(name)]

    async def base(self, central: Sequence[QueueSpec] = ()) -> None:
        """Declare berth's missing exchanges and, before the last of them, the scheduler's queues (`central`):
        processes publish only after all exchanges exist, so these queues miss no message.
        """
        names = self.names
        async with self._one_at_a_time:
            made = await self._exchange(names.exchange)
            await self._exchange(names.queues, {"alternate-exchange": names.dead})
            if not made and await self._exists(names.dead):
                return
            for spec in central:
                try:
                    await self._queue(spec)
                except BrokerRefused as problem:
                    log.warning("requests are lost until a scheduler has started: %s", problem)
            await self._exchange(names.dead)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """While the `with` block runs, delay new declarations of queues and exchanges: if a connection closes
        while a queue is being declared, the client library logs a warning.
        """
        acquired = False
        with suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE_SECONDS):
                acquired = await self._one_at_a_time.acquire()
        try:
            yield
        finally:
            if acquired:
                self._one_at_a_time.release()

    async def queue(self, spec: QueueSpec) -> None:
        """Declare a worker's queue with its bindings."""
        async with self._one_at_a_time:
            await self._queue(spec)

    async def _queue(self, spec: QueueSpec) -> None:
        name = self.names.queue(spec.name)
        if not spec.durable:
            await self._private(name)
        elif not await self._durable(name):
            return
        for key in spec.keys:
            await self._bind(name, self.names.exchange, key)
            if is_of_client(key):
                await self._exchange(self.names.clients)
                await self._bind(name, self.names.clients, key)
        await self._bind(name, self.names.queues, f"*.{name}")

    async def depth(self, name: str) -> tuple[int, int]:
        """Return a queue's number of undelivered messages, and its number of consumers."""
        async with self._one_at_a_time:
            found = (await self._ask(lambda channel: channel.get_queue(name))).declaration_result
        return found.message_count or 0, found.consumer_count or 0

    async def dead(self) -> None:
        """Declare the dead-letter queue."""
        async with self._one_at_a_time:
            await self._dead()

    async def delay(self, milliseconds: int) -> None:
        """Declare the queue that holds messages for this delay and then forwards them to their queues."""
        names = self.names
        name = f"{names.delay}.{milliseconds}"
        if name in self._made:
            return
        arguments: dict[str, Any] = {"x-message-ttl": milliseconds, "x-dead-letter-exchange": names.queues}
        if self._quorum:  # the default strategy, at-most-once, can lose messages
            arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        key = f"{milliseconds}.#"
        async with self._one_at_a_time:
            if await self._dead():
                await self._unrouted()
                await self._bind(names.unrouted, names.dead, key)
            await self._exchange(names.delay)
            if await self._durable(name, arguments):
                await self._bind(name, names.delay, key)
            self._made.add(name)

    async def unrouted(self) -> None:
        """Declare the queue for delayed messages that find their target queue missing after the delay."""
        async with self._one_at_a_time:
            await self._unrouted()

    def forget(self) -> None:
        """Forget which queues were declared, because one was deleted; each is declared at its next use."""
        self._made.clear()

    async def _unrouted(self) -> None:
        name = self.names.unrouted
        if name not in self._made:
            await self._durable(name)
            self._made.add(name)

    async def _dead(self) -> bool:
        """Declare and bind the dead-letter queue; return False if berth's broker user may not do so."""
        name = self.names.dead
        if name not in self._made:
            self._dead_is_ours = await self._durable(name)
            if self._dead_is_ours:
                for key in (LETTER, f"{LETTER}.*"):
                    await self._bind(name, name, key)
            self._made.add(name)
        return self._dead_is_ours

    async def _exists(self, exchange: str) -> bool:
        try:
            await self._ask(lambda channel: channel.get_exchange(exchange))
        except RequestRefused as refused:
            if refused.code == "NOT_FOUND":
                return False
            raise BrokerRefused(f"the exchange {exchange} cannot be used: {refused}") from None
        return True

    async def _exchange(self, name: str, arguments: dict[str, Any] | None = None) -> bool:
        if await self._exists(name):
            return False
        try:
            await self._ask(
                lambda amqp: amqp.declare_exchange(
                    name, ExchangeType.TOPIC, durable=True, arguments=arguments
                )
            )
        except RequestRefused as refused:
            raise BrokerRefused(f"the exchange {name} cannot be made: {refused}") from None
        return True

    async def _durable(self, name: str, arguments: dict[str, Any] | None = None) -> bool:
        """Declare a durable queue. Return False if it exists and berth's RabbitMQ user may not declare it."""
        kind: dict[str, Any] = {"x-queue-type": "classic"}
        if self._quorum:
            # balanced: not all leaders on the node to which this process connects
            locator = {"x-queue-leader-locator": "balanced"}
            kind = {"x-queue-type": "quorum", "x-delivery-limit": _NEVER, **locator}
        try:
            await self._ask(
                lambda amqp: amqp.declare_queue(name, durable=True, arguments={**kind, **(arguments or {})})
            )
        except RequestRefused as refused:
            if refused.code == "ACCESS_REFUSED":
                try:
                    await self._ask(lambda channel: channel.get_queue(name))
                except RequestRefused:
                    raise BrokerRefused(f"the queue {name} cannot be made: {refused}") from None
                return False
            if refused.code == "PRECONDITION_FAILED":
                raise BrokerRefused(
                    f"the queue {name} exists with other properties ({refused}); "
                    "use it with the settings it was made with, or drain and delete it"
                ) from None
            raise
        return True

    async def _private(self, name: str) -> None:
        # Stated because the virtual host's default may be quorum, which private queues cannot be.
        arguments: dict[str, Any] = {"x-queue-type": "classic"}
        try:
            await self._ask(
                lambda amqp: amqp.declare_queue(name, exclusive=True, auto_delete=True, arguments=arguments)
            )
        except RequestRefused as refused:
            if refused.code in ("ACCESS_REFUSED", "PRECONDITION_FAILED"):
                raise BrokerRefused(f"the private queue {name} cannot be made: {refused}") from None
            raise

    async def _bind(self, queue: str, exchange: str, key: str) -> None:
        async def bind(channel: AbstractChannel) -> None:
            await (await channel.get_queue(queue, ensure=False)).bind(exchange, key)

        try:
            await self._ask(bind)
        except RequestRefused as refused:
            if "no exchange" in str(refused):
                raise ExchangeMissing(str(refused)) from None
            raise BrokerRefused(f"the queue {queue} cannot bind {key}: {refused}") from None

    async def _ask(self, request: Callable[[AbstractChannel], Awaitable[T]]) -> T:
        if self._channel is None or self._channel.is_closed:
            self._channel = await open_channel(self._connection, confirms=False)
        async with answered():
            return await request(self._channel)

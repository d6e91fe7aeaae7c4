"""What berth keeps on a broker: names, exchanges, queues, and how each is declared.

    <exchange>             every publish goes here, under its key
    <exchange>.queues      to one queue by its name, under the key 0.<queue>
    <exchange>.delay       to one queue after a while, under the key <ms>.<queue>: by way of the queue
    <exchange>.delay.<ms>  which keeps messages for so long and hands them to <exchange>.queues
    <exchange>.dead        the dead letters; also what was delayed for a queue that is gone meanwhile

All four exchanges are topic exchanges and the default exchange is not used, so that topic permissions can
say which keys a user may publish and hear, and which queues it may reach: RabbitMQ checks keys nowhere else.
A user needs `write` on exchanges to publish, and to read a queue `configure`, `write` and `read` on it and
`read` on <exchange> and <exchange>.queues. What it may not configure it uses as it is, if it is there.
"""

import asyncio
import math
from dataclasses import dataclass

from aiormq import (
    Channel,
    ChannelAccessRefused,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    Connection,
)
from pamqp.common import FieldTable

from bus.errors import BrokerRefused
from bus.protocol import QueueSpec
from bus.rabbit.connection import REFUSALS, open_channel, reason

DELAYS = (0.1, 0.5, 1, 5, 15, 60, 300, 1800)
MAX_DELAY = 24 * 3600
LETTER = "letter"  # the key dead letters are published under
_NEVER = 1_000_000_000  # redeliveries: the runner bounds them, and RabbitMQ 4 would drop after 20


@dataclass(frozen=True, slots=True)
class BrokerNames:
    """Every name derives from the exchange's, so that systems can share a virtual host."""

    exchange: str

    def queue(self, name: str) -> str:
        """The broker's name for a queue; the AMQP library takes no * in it."""
        name = name.replace("*", "+")
        return name if self.exchange == "berth" else f"{self.exchange}:{name}"

    def heard_as(self, exchange: str, key: str) -> str:
        """What a reader takes for the envelope's key: the routing key, or the queue it was sent to."""
        if exchange not in (self.queues, self.delay):
            return key
        queue = key.partition(".")[2]
        return queue if self.exchange == "berth" else queue.removeprefix(f"{self.exchange}:")

    @property
    def queues(self) -> str:
        return f"{self.exchange}.queues"

    @property
    def delay(self) -> str:
        return f"{self.exchange}.delay"

    @property
    def dead(self) -> str:
        return f"{self.exchange}.dead"

    def address(self, queue: str, milliseconds: int = 0) -> str:
        """The key to reach a queue by its name, after so long."""
        return f"{milliseconds}.{self.queue(queue)}"


def delay_for(seconds: float) -> int:
    """The milliseconds of the shortest delay queue that waits at least so long, up to a day."""
    for delay in DELAYS:
        if seconds <= delay:
            return int(delay * 1000)
    longest = DELAYS[-1]
    return int(min(math.ceil(seconds / longest) * longest, MAX_DELAY) * 1000)


class Topology:
    """Declares things over one connection. A refusal closes a channel, so it opens another one as needed."""

    def __init__(self, connection: Connection, names: BrokerNames, quorum: bool) -> None:
        self.names = names
        self._connection = connection
        self._quorum = quorum
        self._channel: Channel | None = None
        self._one_at_a_time = asyncio.Lock()
        self._made: set[str] = set()
        self._dead_is_ours = False

    async def base(self) -> None:
        """What everybody needs."""
        names = self.names
        async with self._one_at_a_time:
            await self._exchange(names.exchange)
            await self._exchange(names.dead)
            await self._exchange(names.queues, {"alternate-exchange": names.dead})

    async def queue(self, spec: QueueSpec) -> None:
        """A worker's queue, bound to the keys it hears."""
        name = self.names.queue(spec.name)
        async with self._one_at_a_time:
            if not spec.durable:
                await self._private(name)
            elif not await self._durable(name):
                return
            for key in spec.keys:
                await self._bind(name, self.names.exchange, key)
            await self._bind(name, self.names.queues, f"*.{name}")

    async def dead(self) -> None:
        """The queue of dead letters."""
        async with self._one_at_a_time:
            await self._dead()

    async def delay(self, milliseconds: int) -> None:
        """The queue for what shall come back after so long."""
        names = self.names
        name = f"{names.delay}.{milliseconds}"
        if name in self._made:
            return
        arguments: FieldTable = {"x-message-ttl": milliseconds, "x-dead-letter-exchange": names.queues}
        if self._quorum:  # whose dead-lettering may lose messages unless told not to
            arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        key = f"{milliseconds}.#"
        async with self._one_at_a_time:
            if await self._dead():
                await self._bind(names.dead, names.dead, key)
            await self._exchange(names.delay)
            if await self._durable(name, arguments):
                await self._bind(name, names.delay, key)
            self._made.add(name)

    def forget(self) -> None:
        """Something turned out to be gone: make it again when it is needed."""
        self._made.clear()

    async def _dead(self) -> bool:
        """False when it is not ours to bind."""
        name = self.names.dead
        if name not in self._made:
            self._dead_is_ours = await self._durable(name)
            if self._dead_is_ours:
                await self._bind(name, name, LETTER)
            self._made.add(name)
        return self._dead_is_ours

    async def _exchange(self, name: str, arguments: FieldTable | None = None) -> None:
        try:
            await (await self._usable()).exchange_declare(name, passive=True)
            return
        except ChannelNotFoundEntity:
            channel = await self._usable()
        except REFUSALS as refusal:
            raise BrokerRefused(f"the exchange {name} cannot be used: {reason(refusal)}") from None
        try:
            await channel.exchange_declare(name, exchange_type="topic", durable=True, arguments=arguments)
        except REFUSALS as refusal:
            raise BrokerRefused(f"the exchange {name} cannot be made: {reason(refusal)}") from None

    async def _durable(self, name: str, arguments: FieldTable | None = None) -> bool:
        """Make a durable queue. False when it is there but not ours to make or bind."""
        kind: FieldTable = (
            {"x-queue-type": "quorum", "x-delivery-limit": _NEVER}
            if self._quorum
            else {"x-queue-type": "classic"}
        )
        try:
            channel = await self._usable()
            await channel.queue_declare(name, durable=True, arguments={**kind, **(arguments or {})})
        except ChannelAccessRefused as refusal:
            try:
                await (await self._usable()).queue_declare(name, passive=True)
            except REFUSALS:
                raise BrokerRefused(f"the queue {name} cannot be made: {reason(refusal)}") from None
            return False
        except ChannelPreconditionFailed as refusal:
            raise BrokerRefused(
                f"the queue {name} exists with other properties ({reason(refusal)}); "
                "use it with the settings it was made with, or drain and delete it"
            ) from None
        return True

    async def _private(self, name: str) -> None:
        arguments: FieldTable = {"x-queue-type": "classic"}  # also where the virtual host's default is quorum
        try:
            channel = await self._usable()
            await channel.queue_declare(name, exclusive=True, auto_delete=True, arguments=arguments)
        except (ChannelAccessRefused, ChannelPreconditionFailed) as refusal:
            raise BrokerRefused(f"the private queue {name} cannot be made: {reason(refusal)}") from None

    async def _bind(self, queue: str, exchange: str, key: str) -> None:
        try:
            await (await self._usable()).queue_bind(queue, exchange, key)
        except REFUSALS as refusal:
            raise BrokerRefused(f"the queue {queue} cannot hear {key}: {reason(refusal)}") from None

    async def _usable(self) -> Channel:
        if self._channel is None or self._channel.is_closed:
            self._channel = await open_channel(self._connection, confirms=False)
        return self._channel

"""Forwards the messages of durable queues from one RabbitMQ to the queues of the same names on another.

A message is acknowledged at the old broker after the new one has confirmed it, and a lost connection is
opened again. So no message is lost, a message may arrive twice, and each queue keeps its order.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from aio_pika.abc import AbstractConnection

from bus.broker_urls import place, user_of
from bus.clock import Backoff, Clock
from bus.errors import BrokerRefused, OperationRefused, Unavailable
from bus.rabbit.connection import (
    RequestRefused,
    answered,
    broker_url,
    dial,
    hang_up,
    open_channel,
    plainly,
    queue_state,
)
from bus.rabbit.topology import BrokerNames, Topology
from features.broker_forwarding.transfer import Transfer

log = logging.getLogger(__name__)

POLL_SECONDS = 5.0  # between two counts of the waiting messages
_NAMED = 5  # number of queues that an error names


@dataclass(eq=False)
class Forwarder:
    """Forwards all queues of a list between two brokers, until it is stopped."""

    old: str
    new: str
    names: BrokerNames
    queues: Sequence[str]
    all_must_exist: bool = False  # True: a queue that the old broker lacks is an error; False: it is left out
    poll_seconds: float = POLL_SECONDS
    clock: Clock = field(default_factory=Clock)
    waiting: dict[str, int] = field(default_factory=dict, init=False)  # queue → messages at the old broker
    idle_since: float | None = field(default=None, init=False)  # since when all queues are empty
    _transfer: Transfer | None = field(default=None, init=False)  # the current transfer, or the last
    _forwarded_before: int = field(default=0, init=False)  # messages forwarded by earlier transfers

    def __post_init__(self) -> None:
        self._old, self._new = (broker_url(url, "berth forward") for url in (self.old, self.new))

    @property
    def forwarded(self) -> int:
        """Return how many messages the new broker has confirmed."""
        return self._forwarded_before + (self._transfer.forwarded if self._transfer is not None else 0)

    @property
    def in_hand(self) -> int:
        """Return how many messages are received from the old broker and not acknowledged there."""
        return self._transfer.in_hand if self._transfer is not None else 0

    @property
    def queue_count(self) -> int:
        return len(self._transfer.queues) if self._transfer is not None else 0

    async def run(self, stopping: asyncio.Event) -> None:
        """Forward messages until `stopping` is set, then complete all received messages.

        Raise Unavailable if the first connection fails, OperationRefused if a queue is missing at the new
        broker or both URLs lead to one broker, and BrokerRefused if a broker permits no forwarding.
        """
        backoff = Backoff(self.clock)
        while not stopping.is_set():
            last = self._transfer
            try:
                await self._forward(stopping)
            except Exception as failure:
                problem = _cause(failure)
                if not isinstance(problem, Unavailable) or self._transfer is None:
                    raise problem from None
                log.warning("%s; trying again", problem)
                self.idle_since = None
            if self._transfer is not last:
                backoff = Backoff(self.clock)
            if not stopping.is_set():
                await backoff.pause()

    async def _forward(self, stopping: asyncio.Event) -> None:
        """Forward messages over one connection to each broker."""
        async with _connection(self._old) as old, _connection(self._new) as new:
            if self._transfer is None:
                await self._check_brokers_differ(old, new)
            with plainly(self._old):
                queues = await self._existing(old, new)
            self._forwarded_before = self.forwarded
            transfer = Transfer(old, new, self._old, self._new, self.names, user_of(self._new), self.clock)
            self._transfer = transfer
            async with asyncio.TaskGroup() as group:
                counting = group.create_task(self._count(transfer, Topology(old, self.names, False)))
                await transfer.run(queues, stopping)
                counting.cancel()
            await transfer.delete_exchanges()

    async def _check_brokers_differ(self, old: AbstractConnection, new: AbstractConnection) -> None:
        """Raise OperationRefused if both connections lead to one broker: a private queue of the old one is
        visible at the new one.
        """
        name = f"{self.names.exchange}.forward.{secrets.token_hex(8)}"
        with plainly(self._old):
            channel = await open_channel(old, confirms=False)
            async with answered():
                await channel.declare_queue(name, exclusive=True, arguments={"x-queue-type": "classic"})
        same = False
        with plainly(self._new):
            try:
                same = await queue_state(new, name) is not None
            except RequestRefused as refused:
                if refused.code != "RESOURCE_LOCKED":
                    raise
                same = True
        with plainly(self._old):
            await channel.close()
        if same:
            raise OperationRefused(
                f"{place(self._old)} and {place(self._new)} are the same broker: they have the same queues"
            )

    async def _existing(self, old: AbstractConnection, new: AbstractConnection) -> list[str]:
        """Return the queues that exist at the old broker; raise OperationRefused if the new one lacks any."""
        here, there = (Topology(connection, self.names, False) for connection in (old, new))
        for topology, url in ((here, self._old), (there, self._new)):
            with plainly(url):
                if missing := await topology.missing(delays=False):
                    raise OperationRefused(
                        f"RabbitMQ at {place(url)} has no exchange {missing[0]}: import the old broker's "
                        "definitions there, or correct the setting `exchange`"
                    )
        present = [name for name in self.queues if await _exists(here, name)]
        if self.all_must_exist and (missing := [name for name in self.queues if name not in present]):
            raise OperationRefused(f"RabbitMQ at {place(self._old)} has no queue {_listed(missing)}")
        with plainly(self._new):
            missing = [name for name in present if not await _exists(there, name)]
        if missing:
            raise OperationRefused(
                f"RabbitMQ at {place(self._new)} lacks queues of the old broker: {_listed(missing)}. Import "
                "the old broker's definitions there: rabbitmqctl import_definitions FILE"
            )
        return present

    async def _count(self, transfer: Transfer, here: Topology) -> None:
        """Count the waiting messages of the queues periodically, until cancelled; set `idle_since` when no
        message is left.
        """
        seen = -1
        while True:
            waiting: dict[str, int] = {}
            with plainly(self._old):
                for name in transfer.queues:
                    with suppress(RequestRefused):  # the queue was deleted
                        messages, _ = await here.depth(name)
                        if messages:
                            waiting[name] = messages
            self.waiting = waiting
            is_idle = not waiting and not transfer.in_hand and transfer.received == seen
            seen = transfer.received
            if not is_idle:
                self.idle_since = None
            elif self.idle_since is None:
                self.idle_since = self.clock.monotonic()
            await asyncio.sleep(self.poll_seconds)


async def _exists(topology: Topology, name: str) -> bool:
    try:
        await topology.depth(name)
    except RequestRefused as refused:
        if "no queue" in str(refused):
            return False
        # RabbitMQ also reports NOT_FOUND for a queue whose leader is down: this is temporary.
        failure = Unavailable if refused.code == "NOT_FOUND" else BrokerRefused
        raise failure(f"the queue {name} cannot be used: {refused}") from None
    return True


def _cause(failure: Exception) -> Exception:
    """Return one error of an exception group that several tasks raised, if possible an error that no retry
    can correct. Return any other exception unchanged.
    """
    if not isinstance(failure, ExceptionGroup):
        return failure
    causes = [_cause(each) for each in failure.exceptions]
    return next((cause for cause in causes if not isinstance(cause, Unavailable)), causes[0])


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


@asynccontextmanager
async def _connection(url: str) -> AsyncIterator[AbstractConnection]:
    connection = await dial(url)
    try:
        yield connection
    finally:
        await hang_up(connection)

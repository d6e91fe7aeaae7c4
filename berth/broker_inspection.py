"""Reads the state of a RabbitMQ broker for `berth doctor`; deletes queues of removed cells and clients, and
exchanges of clients.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from aio_pika import Message
from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import DeliveryError, PublishError

from bus.errors import BrokerRefused
from bus.protocol import QueueSpec
from bus.rabbit.connection import (
    BROKEN,
    RequestRefused,
    answered,
    broker_url,
    dial,
    hang_up,
    open_channel,
    raising_refusals,
    streams_of,
)
from bus.rabbit.foreign.connections import connected
from bus.rabbit.topology import BrokerNames, Topology

TAKES_SECONDS = 5.0
_NO_QUEUE_KEY = "doctor.looks"  # a key without a queue


@dataclass
class BrokerState:
    """The state of a broker as a client sees it."""

    version: str = ""
    fresh: bool = False  # berth's exchange does not exist
    stuck: bool = False
    alarm: str = ""  # why the broker accepts no messages, as it reports to publishers
    refused: list[str] = field(default_factory=list)
    waiting: dict[str, tuple[int, int]] = field(default_factory=dict)  # queue → messages, consumers


async def inspect(url: str, exchange: str, queues: Sequence[QueueSpec], *, publishes: bool) -> BrokerState:
    """Return the state of a RabbitMQ broker. With `publishes`, also check that the URL's user may publish to
    the exchange with any key.
    """
    connection = await dial(broker_url(url, "berth doctor"))
    found = BrokerState()
    names = BrokerNames(exchange)
    topology = Topology(connection, names, True)
    try:
        properties = (
            getattr(getattr(connection.transport, "connection", None), "server_properties", None) or {}
        )
        version = properties.get("version", b"")
        found.version = version.decode() if isinstance(version, bytes) else str(version)
        found.fresh = exchange in await topology.missing(delays=False)
        for spec in queues:
            if (waiting := await _waiting(topology, names.queue(spec.name))) is None:
                continue
            found.waiting[spec.name] = waiting
            try:
                await topology.queue(spec)  # changes nothing: shows whether the worker could use the queue
            except (BrokerRefused, RequestRefused) as refused:
                found.refused.append(str(refused))
        # Last, because a broker with an alarm reads nothing more from a connection after a publication.
        if not found.fresh:
            found.stuck = not await _accepts(connection, exchange, found, is_permitted=publishes)
            found.alarm = streams_of(connection)[0].blocked
        return found
    finally:
        with suppress(*BROKEN):
            await hang_up(connection)


async def _waiting(topology: Topology, queue: str) -> tuple[int, int] | None:
    try:
        return await topology.depth(queue)
    except RequestRefused:
        return None


async def _accepts(
    connection: AbstractConnection, exchange: str, found: BrokerState, *, is_permitted: bool
) -> bool:
    """Return whether the broker accepts test messages in time; no queue receives them. `is_permitted`: if the
    broker refuses a message, add the refusal to `found`.

    A broker with a resource alarm accepts only the first message of a connection: further messages are not
    read.
    """
    wire, _ = streams_of(connection)
    try:
        async with asyncio.timeout(TAKES_SECONDS):
            channel = await open_channel(connection, confirms=True)
            through = await channel.get_exchange(exchange, ensure=False)
            for _ in range(2):
                # A broker that returns the message because no queue is bound has accepted it.
                with raising_refusals(), suppress(PublishError, DeliveryError):
                    await through.publish(Message(b""), _NO_QUEUE_KEY, mandatory=True)
                if wire.blocked:
                    return False
    except TimeoutError:
        return False
    except RequestRefused as refused:
        if is_permitted:
            found.refused.append(str(refused))
    return True


_AGAIN_SECONDS = 0.2


@dataclass
class DeletedQueues:
    """The result of a deletion of queues: the names of the queues that were kept, and how many messages the
    deleted queues had.
    """

    kept: list[str] = field(default_factory=list)
    messages: int = 0


async def delete_queues(url: str, names: Iterable[str], *, unread_within: float = 0.0) -> DeletedQueues:
    """Delete the named queues; return which were kept, and the number of deleted messages. With
    `unread_within`, a queue is kept if it still has a consumer after so many seconds.
    """
    result = DeletedQueues()
    until = asyncio.get_running_loop().time() + unread_within
    async with connected(broker_url(url, "berth cell"), " while queues were deleted") as connection:
        for name in names:
            while (messages := await _deleted(connection, name, only_unread=unread_within > 0)) is None:
                if asyncio.get_running_loop().time() >= until:
                    result.kept.append(name)
                    break
                await asyncio.sleep(_AGAIN_SECONDS)
            result.messages += messages or 0
    return result


async def _deleted(connection: AbstractConnection, name: str, *, only_unread: bool) -> int | None:
    """Delete a queue; if `only_unread`, keep a queue that has consumers. Return the number of deleted
    messages, or None if the queue was kept.
    """
    channel = await open_channel(connection, confirms=False)
    try:
        async with answered():
            if only_unread:  # quorum queues do not support the broker's own condition, if-unused
                found = (await channel.get_queue(name)).declaration_result
                if found.consumer_count:
                    await channel.close()
                    return None
            deleted = await channel.queue_delete(name)
            await channel.close()
    except RequestRefused as refused:
        if refused.code == "NOT_FOUND":
            return 0
        raise BrokerRefused(f"queue {name} cannot be deleted: {refused}") from None
    return deleted.message_count or 0

"""The state of the queue on which servers of an oslo.messaging topic receive calls."""

from dataclasses import dataclass
from typing import Any

from aio_pika.abc import AbstractConnection

from bus.errors import BrokerRefused, Unavailable
from bus.rabbit.connection import RequestRefused, broker_url, queue_depth
from bus.rabbit.foreign.connections import connected, declare_queue
from features.nova.oslo.server import RpcAddress


@dataclass(frozen=True)
class TopicQueue:
    """The state of a topic's queue: messages, consumers, how many of the consumers are servers of berth, and
    which properties contradict berth's settings.
    """

    exists: bool = False
    messages: int = 0
    consumers: int = 0
    ours: int = 0
    mismatch: str = ""  # why RabbitMQ refuses to declare the queue with berth's settings
    problem: str = ""  # why the state could not be read


async def observe(address: RpcAddress, *, name: str) -> TopicQueue:
    """Return the state of the queue of an oslo.messaging topic, without creating a missing queue."""
    try:
        async with connected(broker_url(address.url, name)) as connection:
            return await _observed(connection, address)
    except (Unavailable, BrokerRefused) as problem:
        return TopicQueue(problem=str(problem))


async def _observed(connection: AbstractConnection, address: RpcAddress) -> TopicQueue:
    try:
        servers = await queue_depth(connection, address.servers_queue)
        found = await queue_depth(connection, address.topic)
    except RequestRefused as refused:
        return TopicQueue(problem=str(refused))
    if found is None:
        return TopicQueue()
    arguments: dict[str, Any] = {"x-queue-type": "quorum"} if address.quorum else {}
    mismatch, durable = "", address.durable or address.quorum
    try:
        await declare_queue(connection, address.topic, arguments=arguments, durable=durable)
    except RequestRefused as refused:
        mismatch = str(refused)
    ours = servers.readers if servers is not None else 0
    return TopicQueue(True, found.messages, found.readers, min(ours, found.readers), mismatch)

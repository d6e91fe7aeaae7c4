"""Reads how many messages and consumers a queue has, without changing it."""

from collections.abc import Iterable
from dataclasses import dataclass

from aio_pika.abc import AbstractConnection

from bus.rabbit.connection import RequestRefused, answered, dial, open_channel, plainly
from bus.rabbit.underlay import hang_up


@dataclass(frozen=True)
class QueueState:
    """The number of undelivered messages in a queue, and the number of its consumers."""

    messages: int
    consumers: int


async def queue_state(connection: AbstractConnection, name: str) -> QueueState | None:
    """Return the state of a queue, or None if the queue does not exist; raise RequestRefused if the broker
    refuses for another reason.
    """
    channel = await open_channel(connection, confirms=False)
    try:
        async with answered():
            found = (await channel.get_queue(name)).declaration_result  # a passive declaration
            await channel.close()
    except RequestRefused as refused:
        if refused.code != "NOT_FOUND":
            raise
        return None
    return QueueState(found.message_count or 0, found.consumer_count or 0)


async def unread(url: str, names: Iterable[str]) -> dict[str, int]:
    """Return the number of messages in each of the given queues that exists and has no consumer; raise
    Unavailable or BrokerRefused.
    """
    connection = await dial(url)
    try:
        with plainly(url):
            found = {name: await queue_state(connection, name) for name in names}
    finally:
        await hang_up(connection)
    return {
        name: state.messages for name, state in found.items() if state is not None and not state.consumers
    }

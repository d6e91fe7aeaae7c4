"""Deletes queues of removed cells and clients."""

import asyncio
from collections.abc import Iterable

from aio_pika.abc import AbstractConnection

from bus.errors import BrokerRefused
from bus.rabbit.connection import RequestRefused, answered, broker_url, dial, open_channel, plainly
from bus.rabbit.underlay import hang_up

_AGAIN_SECONDS = 0.2


async def delete_queues(url: str, names: Iterable[str], *, unread_within: float = 0.0) -> list[str]:
    """Delete the queues with their messages; with a time, only after their consumers have left within it.
    Return the remaining names.
    """
    stay: list[str] = []
    connection = await dial(broker_url(url, "berth cell"))
    until = asyncio.get_running_loop().time() + unread_within
    try:
        with plainly(url, " while queues were deleted"):
            for name in names:
                while not await _deleted(connection, name, only_unread=unread_within > 0):
                    if asyncio.get_running_loop().time() >= until:
                        stay.append(name)
                        break
                    await asyncio.sleep(_AGAIN_SECONDS)
    finally:
        await hang_up(connection)
    return stay


async def _deleted(connection: AbstractConnection, name: str, *, only_unread: bool) -> bool:
    """Return whether the queue is deleted. A refusal closes the channel, so each queue has its own. A missing
    queue counts as deleted.
    """
    channel = await open_channel(connection, confirms=False)
    try:
        async with answered():
            await channel.queue_delete(name, if_unused=only_unread)
            await channel.close()
    except RequestRefused as refused:
        if refused.code != "PRECONDITION_FAILED":
            raise BrokerRefused(f"queue {name} cannot be deleted: {refused}") from None
        return False
    return True

"""Publishes as a client: the consumer may still be starting, and is awaited."""

import asyncio
import logging
from itertools import count

from bus import topics
from bus.delivery.runner import Bus
from bus.errors import Unroutable
from bus.vocabulary import Message

log = logging.getLogger(__name__)

PATIENCE = 10.0  # seconds
_LOOK_SECONDS = 0.1


async def publish(bus: Bus, *messages: Message, patience: float = PATIENCE) -> None:
    """Return when the messages are in their queues. Raise Unroutable if there is none within `patience`.

    All messages have one type; all are repeated if one had no queue, which is a redelivery for the others.
    """
    deadline = bus.clock.monotonic() + patience
    for tries in count():
        try:
            await bus.publish(*messages)
            return
        except Unroutable as nobody:
            who = topics.TOPIC_OF[type(messages[0])].target
            if bus.clock.monotonic() >= deadline:
                raise Unroutable(f"{nobody}: not running: {who} (tried for {patience:g} s)") from None
            if not tries:  # once: a user at a terminal should know the reason for the wait
                log.warning("%s: not up yet: %s; trying again for %g s", nobody, who, patience)
        await asyncio.sleep(_LOOK_SECONDS)

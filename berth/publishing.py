"""How a client publishes: who is to hear it may only be starting up, and is waited for."""

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
    """Returns when they are safe with who is to hear them; Unroutable where within `patience` nobody does.

    Several are of one kind; all come again if one was not heard, which to who heard it is a redelivery.
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
            if not tries:  # once: who waits at a terminal should know for what
                log.warning("%s: not up yet: %s; trying again for %g s", nobody, who, patience)
        await asyncio.sleep(_LOOK_SECONDS)

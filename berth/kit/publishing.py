"""Checks and publishes the messages of a client; waits if the worker that receives them is still starting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import count
from math import inf
from typing import TYPE_CHECKING, TypeVar

from berth.settings import BadSetting
from bus import topics
from bus.errors import OperationRefused, TooBig, Unavailable, Undecodable, Unroutable
from bus.protocol import encode
from bus.reading import read
from bus.vocabulary import Message

if TYPE_CHECKING:  # the command line imports this module, and does not need metrics to begin
    from bus.delivery.runner import Bus, Listener


log = logging.getLogger(__name__)
M = TypeVar("M", bound=Message)
T = TypeVar("T")


PUBLISH_SECONDS = 10.0  # seconds to wait for a missing queue


_POLL_SECONDS = 0.1


_REPEAT_SECONDS = 0.5  # between two tries of a query


async def publish(bus: Bus, *messages: Message, patience: float = PUBLISH_SECONDS) -> None:
    """Publish messages and return when they are in their queues; raise Unroutable if a queue is still missing
    after `patience` seconds.

    All messages must have one type. If a message had no queue, all are published again, so some arrive twice.
    """
    deadline = bus.clock.monotonic() + patience
    for tries in count():
        try:
            await bus.publish(*messages)
            return
        except Unroutable as unroutable:
            receiver = topics.TOPIC_OF[type(messages[0])].target
            if bus.clock.monotonic() >= deadline:
                raise Unroutable(
                    f"{unroutable}: not running: {receiver} (tried for {patience:g} s)"
                ) from None
            if not tries:  # log only once, so that a user at a terminal knows why it takes long
                log.warning("%s: not up yet: %s; trying again for %g s", unroutable, receiver, patience)
        await asyncio.sleep(_POLL_SECONDS)


async def repeated_until_answered(bus: Bus, ask: Callable[[], Awaitable[T]], seconds: float = inf) -> T:
    """Repeat a query until a worker answers it, and return the answer. After `seconds`, raise the error of
    the last try.
    """
    deadline = bus.clock.monotonic() + seconds
    while True:
        try:
            return await ask()
        except (Unavailable, Unroutable):
            if bus.clock.monotonic() >= deadline:
                raise
        await asyncio.sleep(_REPEAT_SECONDS)


def checked(message: M) -> M:
    """Return the message as its receiver would decode it; raise BadSetting if a field is invalid."""
    try:
        return read(type(message), encode(message))
    except (Undecodable, TooBig) as problem:
        raise BadSetting(str(problem)) from None


async def within_seconds(seconds: float, work: Awaitable[T], otherwise: str) -> T:
    """Await `work` and return its result; after `seconds` raise OperationRefused with the given text."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise OperationRefused(otherwise) from None


async def each_message(listener: Listener[M], handle: Callable[[M], None]) -> None:
    """Call `handle` with each message that a subscription receives, until this task is cancelled."""
    while True:
        handle(await listener.get())

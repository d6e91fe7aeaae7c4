"""Waits in real time for a condition, with a limit."""

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeVar

from bus.clock import monotonic
from bus.delivery.runner import Listener
from bus.vocabulary import Message

T = TypeVar("T")
M = TypeVar("M", bound=Message)

DEADLINE = 60.0  # ends a test that would wait forever; long, because the machine may be busy


async def in_time(thing: Awaitable[T], seconds: float = DEADLINE) -> T:
    async with asyncio.timeout(seconds):
        return await thing


async def receive_all(listener: Listener[M], take: Callable[[M], object]) -> None:
    """Call `take` with each message of a listener, until cancelled."""
    while True:
        take(await listener.get())


async def until(
    holds: Callable[[], object],
    what: str = "",
    seconds: float = DEADLINE,
    *,
    picture: Callable[[], object] | None = None,
) -> None:
    """Wait until `holds` returns a true value. After `seconds`, fail with the result of `picture`. Both may
    be coroutine functions. The pauses between calls grow with time.
    """
    began = monotonic()
    try:
        async with asyncio.timeout(seconds):
            while not await _result(holds):
                await asyncio.sleep(min(0.002 + 0.05 * (monotonic() - began), 0.1))
    except TimeoutError:
        seen = await _result(picture) if picture is not None else ""
        raise AssertionError(f"not within {seconds} s: {what or holds}\n{seen}") from None


async def _result(function: Callable[[], object]) -> object:
    found = function()
    return await found if isawaitable(found) else found

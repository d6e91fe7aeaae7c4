"""Waits in real time for a condition, with a limit of the time without progress.

A limit of time would fail correct code on a busy machine: while a process waits for a processor it can make
no progress, so this time does not count. Linux records it for each thread (`/proc/PID/schedstat`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from pathlib import Path
from typing import TypeVar

from bus.clock import monotonic
from bus.delivery.runner import Listener
from bus.vocabulary import Message

T = TypeVar("T")
M = TypeVar("M", bound=Message)

DEADLINE = 60.0  # ends a test that would wait forever


def processor_wait() -> float:
    """Return for how many seconds this process, or the child process that waited longest, has waited for a
    processor; 0 on systems that do not record it.
    """
    tasks = Path("/proc/self/task")
    try:
        children = [child for task in tasks.iterdir() for child in (task / "children").read_text().split()]
    except OSError:
        children = []
    return max(waited_by("self"), *map(waited_by, children), 0.0)


def waited_by(process: str | int) -> float:
    """Return for how many seconds the main thread of a process has waited for a processor."""
    try:
        return int(Path("/proc", str(process), "schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):  # the process has ended, or the system does not record it
        return 0.0


class Patience:
    """The time that is left until a limit, without the time in which the process waited for a processor."""

    def __init__(
        self, seconds: float, now: Callable[[], float], waited: Callable[[], float] | None = None
    ) -> None:
        self._seconds, self._now, self._waited = seconds, now, waited or processor_wait
        self._began, self._waited_before = now(), self._waited()

    def left(self) -> float:
        starved = max(self._waited() - self._waited_before, 0.0)
        return self._seconds + starved - (self._now() - self._began)


@asynccontextmanager
async def patience(seconds: float = DEADLINE) -> AsyncIterator[None]:
    """Raise TimeoutError like `asyncio.timeout`, but after so many seconds in which the process could run."""
    loop = asyncio.get_running_loop()
    limited = Patience(seconds, loop.time)
    async with asyncio.timeout(None) as limit:

        def check() -> None:
            if (left := limited.left()) <= 0:
                limit.reschedule(loop.time())
            else:
                timers[0] = loop.call_later(left, check)

        timers = [loop.call_later(seconds, check)]
        try:
            yield
        finally:
            timers[0].cancel()


async def in_time(thing: Awaitable[T], seconds: float = DEADLINE) -> T:
    async with patience(seconds):
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
        async with patience(seconds):
            while not await _result(holds):
                await asyncio.sleep(min(0.002 + 0.05 * (monotonic() - began), 0.1))
    except TimeoutError:
        seen = await _result(picture) if picture is not None else ""
        raise AssertionError(f"not within {seconds} s: {what or holds}\n{seen}") from None


async def _result(function: Callable[[], object]) -> object:
    found = function()
    return await found if isawaitable(found) else found

"""Defines the clock, with a random source, that tests and simulations replace. Also defines classes that use
the clock: pauses between retries, a rate limit, and sequence numbers of reports.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bus.errors import Unavailable
from bus.vocabulary import MAX_ORDINAL

_VERSION_4 = 0x4000 << 64 | 0x8000 << 48  # the version and the variant
_RANDOM = ~(0xF000 << 64 | 0xC000 << 48)  # all other bits


@dataclass(frozen=True, slots=True)
class Clock:
    """Provides the current time, and random numbers that are reproducible from a seed."""

    now: Callable[[], float] = time.time  # wall time since the epoch, to publish and store; it may jump
    chance: random.Random = field(default_factory=random.Random)
    monotonic: Callable[[], float] = time.monotonic  # for durations; never published or stored

    def uuid(self) -> str:
        """Return a random UUID of version 4, in half the time of `uuid.uuid4()`: every message needs one."""
        digits = f"{self.chance.getrandbits(128) & _RANDOM | _VERSION_4:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


monotonic = time.monotonic  # for durations, for code without an injected clock


def time_text(seconds: float) -> str:
    """Return a time as text in UTC, such as 2026-12-24 08:00, or `-` for 0."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M") if seconds else "-"


def moment_text(seconds: float) -> str:
    """Return a time as text in UTC to the second, such as 2026-12-24 08:00:05 UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


async def set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set or `seconds` have passed; raise no error in either case."""
    if seconds <= 0:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0


class Backoff:
    """Pauses between retries: from 0.1 s doubling to 5 s, shortened at random to spread the retries."""

    def __init__(self, clock: Clock) -> None:
        self._chance = clock.chance
        self._next = _FIRST_PAUSE

    async def pause(self) -> None:
        """Sleep for the present pause, shortened at random by up to half; then double the pause up to a
        maximum.
        """
        await asyncio.sleep(self._next * (0.5 + self._chance.random() / 2))
        self._next = min(self._next * 2, _LONGEST_PAUSE)


log = logging.getLogger(__name__)

SOONEST = 0.1  # seconds between two messages


class RateLimitedPublisher:
    """Calls `publish` after calls of `due`, but at most ten times a second.

    If the broker is unreachable, the message is dropped. `subject` describes the message in the log.
    """

    def __init__(self, publish: Callable[[], Awaitable[None]], subject: str) -> None:
        self._publish = publish
        self._subject = subject
        self._due = asyncio.Event()

    def due(self) -> None:
        """Request a publication, which happens as soon as the rate permits it."""
        self._due.set()

    async def run(self) -> None:
        """Call `publish` after each call of `due`, until cancelled.

        All calls of `due` between two publications lead to one publication.
        """
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self._publish()
            except Unavailable as away:
                log.debug("%s was not published: %s", self._subject, away)
            await asyncio.sleep(SOONEST)


class ReportSequence:
    """Generates increasing sequence numbers for reports: the time in microseconds, or the last number + 1."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0

    def next(self) -> int:
        """Return a number higher than all earlier ones: the time in microseconds, if the clock was not set
        back.
        """
        self._last = min(max(self._last + 1, int(self._clock.now() * 1_000_000)), MAX_ORDINAL)
        return self._last

    def follow(self, reported: int) -> None:
        """Continue with sequence numbers above `reported`, the last sequence number of an earlier process,
        whose clock may have been ahead."""
        self._last = max(self._last, reported)

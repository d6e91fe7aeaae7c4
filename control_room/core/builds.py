"""Prepares builds for pages, and counts them by the time at which they ended."""

import re
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from bus.messages import Attempt


@dataclass(frozen=True)
class AttemptShown:
    """An attempt of a build with its times, as its page shows it."""

    number: int
    attempt: Attempt
    after: float | None  # seconds since the first order
    took: float | None
    left: float = 0.0  # left edge of the bar, in percent
    width: float = 0.0


def timeline(attempts: Sequence[Attempt]) -> list[AttemptShown]:
    """Return a table row for each attempt of a build, with a time bar if the attempt's times are known."""
    began = min((attempt.started for attempt in attempts if attempt.started), default=0.0)
    ended = max((attempt.ended for attempt in attempts if attempt.ended), default=began)
    scale = 100 / max(ended - began, 1e-6)
    rows = []
    for number, attempt in enumerate(attempts, 1):
        after = max(0.0, attempt.started - began) if attempt.started else None
        if after is None or not attempt.ended:
            rows.append(AttemptShown(number, attempt, after, None))
            continue
        took, left = max(0.0, attempt.ended - attempt.started), min(after * scale, 99.5)
        rows.append(AttemptShown(number, attempt, after, took, left, min(max(0.5, took * scale), 100 - left)))
    return rows


TICK = 5.0  # seconds of one period


TICKS = 120


RECENT = 2000


MOST_CAUSES = 30  # causes with a separate count in a tick; the rest are counted together


OTHER = "other causes"


_BOUNDS = tuple(0.001 * 1.1**step for step in range(160))  # limits of durations: 1 ms to an hour, by 10 %


_CHANGING = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[\w.-]*\d[\w.-]*\b|'[^']*'")


EndStatus = Literal["active", "error", "no host"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedBuild:
    """A build that has ended, as a row of the pages' lists."""

    build: str
    status: EndStatus
    at: float
    cell: str = ""
    host: str = ""
    seconds: float | None = None  # seconds of the build, from its first order to an agent
    attempts: int = 0
    cause: str = ""


@dataclass(slots=True)
class Tick:
    """The counts of builds that ended within one period of five seconds, by their result."""

    number: int
    ends: Counter[str] = field(default_factory=Counter)  # by status
    durations: Counter[int] = field(default_factory=Counter)  # of active builds
    causes: Counter[str] = field(default_factory=Counter)
    host_failures: int = 0


class BuildHistory:
    """Counts the builds that ended in the last ten minutes, and lists the last ended builds."""

    def __init__(self) -> None:
        self._ticks: deque[Tick] = deque()
        self.recent: deque[EndedBuild] = deque(maxlen=RECENT)

    def add(self, end: EndedBuild) -> None:
        """Count an ended build."""
        tick = self._at(end.at)
        tick.ends[end.status] += 1
        if end.status == "active" and end.seconds is not None:
            tick.durations[bucket(end.seconds)] += 1
        if end.cause:
            cause = without_details(end.cause)
            if cause not in tick.causes and len(tick.causes) >= MOST_CAUSES:
                cause = OTHER
            tick.causes[cause] += 1
        self.recent.append(end)

    def add_failure(self, at: float) -> None:
        """Count a failed attempt on a host."""
        self._at(at).host_failures += 1

    def ticks(self, now: float) -> list[Tick]:
        """Return the counts of each complete five-second period of the last ten minutes, oldest first."""
        last, known = int(now // TICK), {tick.number: tick for tick in self._ticks}
        quiet = Tick(last - 1)  # shared by all periods without ends
        return [known.get(number) or quiet for number in range(last - TICKS, last)]

    def current(self, now: float) -> Tick:
        """Return the counts of the present period of five seconds, which is not complete."""
        number = int(now // TICK)
        return next((tick for tick in reversed(self._ticks) if tick.number == number), None) or Tick(number)

    def rate(self, now: float) -> float:
        """Return how many builds per second became active in the last two complete periods (ten seconds)."""
        return sum(tick.ends["active"] for tick in self.ticks(now)[-2:]) / (2 * TICK)

    def _at(self, at: float) -> Tick:
        number = int(at // TICK)
        ticks = self._ticks
        if not ticks or number > ticks[-1].number:
            ticks.append(Tick(number))
            while ticks[0].number <= number - TICKS - 1:
                ticks.popleft()
            return ticks[-1]
        for tick in reversed(ticks):  # the clock was set back, or messages arrived out of order
            if tick.number <= number:
                return tick
        return ticks[0]


def without_details(cause: str) -> str:
    """Return a failure's cause without ids, numbers and names, so that equal causes are counted together."""
    return _CHANGING.sub("…", cause)[:120]


def summed(ticks: Sequence[Tick]) -> Tick:
    """Return the sum of the counts of ended builds of several five-second periods."""
    whole = Tick(ticks[-1].number if ticks else 0)
    for tick in ticks:
        if not tick.ends and not tick.host_failures:
            continue
        whole.ends.update(tick.ends)
        whole.durations.update(tick.durations)
        whole.causes.update(tick.causes)
        whole.host_failures += tick.host_failures
    return whole


def latest(recent: Sequence[EndedBuild], failed_only: bool, limit: int) -> Iterator[EndedBuild]:
    """Yield up to `limit` of the ended builds `recent`, the newest first; with `failed_only`, only builds
    that failed or had several attempts.
    """
    for end in reversed(recent):
        if limit <= 0:
            return
        if not failed_only or end.status != "active" or end.attempts > 1:
            limit -= 1
            yield end


def bucket(seconds: float) -> int:
    """Return the bucket of a duration in the histogram."""
    return bisect_left(_BOUNDS, seconds)


def percentiles(counts: Mapping[int, int], shares: Iterable[float]) -> list[float | None]:
    """Return percentiles of durations in seconds, one for each share (0.95: p95); None without builds.
    `counts`: the number of builds by interval of a histogram of durations (`bucket` returns the interval).
    """
    numbers = sorted(counts)
    passed = list(accumulate(counts[number] for number in numbers))
    if not passed:
        return [None for _ in shares]
    reached = (numbers[bisect_left(passed, share * passed[-1])] for share in shares)
    return [_BOUNDS[min(number, len(_BOUNDS) - 1)] for number in reached]

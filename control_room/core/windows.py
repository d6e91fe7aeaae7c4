"""Counts ends of builds for each tick of time, and keeps the last ones by name."""

import re
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

TICK = 5.0  # seconds
TICKS = 120
RECENT = 2000
MOST_CAUSES = 30  # causes with a separate count in a tick; the rest are counted together
OTHER = "other causes"
_BOUNDS = tuple(0.001 * 1.1**step for step in range(160))  # a millisecond to an hour, in steps of a tenth
_CHANGING = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[\w.-]*\d[\w.-]*\b|'[^']*'")

EndStatus = Literal["active", "error", "no host"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedBuild:
    """A build that has ended, with the fields that lists show."""

    build: str
    status: EndStatus
    at: float
    cell: str = ""
    host: str = ""
    seconds: float | None = None  # that its cell took, from the first order on
    attempts: int = 0
    cause: str = ""


@dataclass(slots=True)
class Tick:
    """The numbers of builds that ended within one period of some seconds."""

    number: int
    ends: Counter[str] = field(default_factory=Counter)  # by status
    durations: Counter[int] = field(default_factory=Counter)  # of active builds
    causes: Counter[str] = field(default_factory=Counter)
    host_failures: int = 0
    moves: Counter[str] = field(default_factory=Counter)  # by how they ended


class BuildHistory:
    """The numbers of ended builds of the last ten minutes by tick, and the last ended builds."""

    def __init__(self) -> None:
        self._ticks: deque[Tick] = deque()
        self.recent: deque[EndedBuild] = deque(maxlen=RECENT)

    def add(self, end: EndedBuild) -> None:
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
        self._at(at).host_failures += 1

    def add_move(self, end: str, at: float) -> None:
        self._at(at).moves[end] += 1

    def ticks(self, now: float) -> list[Tick]:
        """Return the complete ticks, oldest first."""
        return self._ticks_until(int(now // TICK), TICKS)

    def _ticks_until(self, last: int, several: int) -> list[Tick]:
        known = {tick.number: tick for tick in self._ticks}
        quiet = Tick(last - 1)  # one for all of them
        return [known.get(number) or quiet for number in range(last - several, last)]

    def current(self, now: float) -> Tick:
        """Return the counts since the last complete tick."""
        number = int(now // TICK)
        return next((tick for tick in reversed(self._ticks) if tick.number == number), None) or Tick(number)

    def rate(self, now: float, ticks: int = 2) -> float:
        """Return the builds a second that became active in the last complete ticks."""
        last = self._ticks_until(int(now // TICK), ticks)
        return sum(tick.ends["active"] for tick in last) / (ticks * TICK)

    def _at(self, at: float) -> Tick:
        number = int(at // TICK)
        ticks = self._ticks
        if not ticks or number > ticks[-1].number:
            ticks.append(Tick(number))
            while ticks[0].number <= number - TICKS - 1:
                ticks.popleft()
            return ticks[-1]
        for tick in reversed(ticks):  # the clock was put back, or messages came out of order
            if tick.number <= number:
                return tick
        return ticks[0]


def without_details(cause: str) -> str:
    """Return the cause of a failure without ids, numbers and names with numbers, so that equal causes are
    counted together.
    """
    return _CHANGING.sub("…", cause)[:120]


def summed(ticks: Sequence[Tick]) -> Tick:
    """Return the sums of several ticks."""
    whole = Tick(ticks[-1].number if ticks else 0)
    for tick in ticks:
        if not tick.ends and not tick.moves and not tick.host_failures:
            continue
        whole.ends.update(tick.ends)
        whole.durations.update(tick.durations)
        whole.causes.update(tick.causes)
        whole.moves.update(tick.moves)
        whole.host_failures += tick.host_failures
    return whole


def latest(recent: Sequence[EndedBuild], failed_only: bool, limit: int) -> Iterator[EndedBuild]:
    """Return the last ended builds, the newest first."""
    for end in reversed(recent):
        if limit <= 0:
            return
        if not failed_only or end.status != "active" or end.attempts > 1:
            limit -= 1
            yield end


def bucket(seconds: float) -> int:
    return bisect_left(_BOUNDS, seconds)


def percentiles(counts: Mapping[int, int], shares: Iterable[float]) -> list[float | None]:
    """Return for each share, such as 0.95, the duration within which this share of the builds ended, or None
    without builds.
    """
    numbers = sorted(counts)
    passed = list(accumulate(counts[number] for number in numbers))
    if not passed:
        return [None for _ in shares]
    reached = (numbers[bisect_left(passed, share * passed[-1])] for share in shares)
    return [_BOUNDS[min(number, len(_BOUNDS) - 1)] for number in reached]

"""Prepares builds, moves and drains for pages, and counts builds by the time at which they ended."""

import re
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from bus.decisions import Decision, Record, RecordedHost
from bus.messages import Attempt
from features.moves.messages import MoveStands

MOST_WEIGHERS = 5

Scores = Callable[[Record, str], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class RankedRow:
    host: str
    root: str
    total: float
    scores: tuple[float, ...]
    chosen: bool
    why_not: str


@dataclass(frozen=True)
class DecisionShown:
    """A scheduler's decision as a page shows it: with its weighers' names, and its hosts, the best first."""

    decision: Decision
    weighers: tuple[str, ...] = ()
    ranked: tuple[RankedRow, ...] = ()


def shown(decision: Decision, scores: Scores, chosen: str = "") -> DecisionShown:
    record = decision.record
    if record is None:
        return DecisionShown(decision)
    scales = sorted(record.scales, key=lambda scale: -abs(scale.multiplier))
    weighers = tuple(scale.weigher for scale in scales[:MOST_WEIGHERS])

    def row(host: RecordedHost) -> RankedRow:
        scored = scores(record, host.root)
        refused = "placement refused it" if host.root in record.turned_down else ""
        return RankedRow(
            host=host.host,
            root=host.root,
            total=scored.get("total", 0.0),
            scores=tuple(scored.get(name, 0.0) + 0.0 for name in weighers),  # + 0.0 converts -0 to 0
            chosen=host.root == chosen,
            why_not=host.refused or refused,
        )

    ranked = sorted(
        map(row, record.hosts),
        key=lambda shown_host: (bool(shown_host.why_not), -shown_host.total, not shown_host.chosen),
    )
    return DecisionShown(decision, weighers, tuple(ranked))


@dataclass(frozen=True)
class AttemptShown:
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


VERIFYING = ("verify", "verifying")  # phases in which a move waits for the operator
A_DAY = 86_400.0

_PHASES = {
    "prepare": "preparing on {host}",
    "send": "copying to {host}",
    "start": "starting on {host}",
    "back": "returning to {host}",
    "resume": "resuming on {host}",
    "build": "building on {host}",
    "rebuild": "rebuilding on {host}",
    "swap": "failed on {host}: trying the next host",
    "undo": "returning to its source",
    "revert": "returning to its source",
    "abort": "returning to its source",
    "confirm": "confirmed on {host}: releasing the source",
    "away": "left its cell",
}
_ENDS = {
    "done": "done",
    "reverted": "returned to its source",
    "aborted": "aborted: it is at its source",
    "error": "not done",
    "deleted": "deleted",
}


@dataclass(frozen=True, kw_only=True)
class MoveShown:
    stands: MoveStands
    says: str
    state: str  # good, warn, bad; empty: in progress
    attempt: int  # number of the attempt
    took: float | None  # None: the phase is in progress
    may: tuple[str, ...]  # permitted operations: confirm, revert, abort, force

    @property
    def id(self) -> str:
        return self.stands.move


def move_shown(move: MoveStands) -> MoveShown:
    host = move.towards or "its host"
    waits = move.phase in VERIFYING
    if move.in_cell:
        description = f"continues in cell {move.in_cell}"
    elif move.ended:
        description = _ENDS.get(move.phase, move.phase)
    elif waits:
        description = f"runs on {host}, waits for confirmation or revert"
    else:
        known = _PHASES.get(move.phase)
        description = known.format(host=host) if known else f"{move.phase} on {host}"
    states = {"done": "good", "error": "bad"}
    state = states.get(move.phase, "warn") if move.ended else ""
    return MoveShown(
        stands=move,
        says=description,
        state="warn" if waits else state,
        attempt=sum(each.outcome != "built" for each in move.attempts) + 1,
        took=max(0.0, move.ended - move.since) if move.ended else None,
        may=_may(move, waits),
    )


def _may(move: MoveStands, waits: bool) -> tuple[str, ...]:
    if move.ended or move.in_cell or move.phase in ("undo", "revert", "abort", "confirm"):
        return ()
    if waits:
        return "confirm", "revert"
    return ("abort", "force") if move.kind == "live" and move.phase == "send" else ("abort",)


def merged_moves(found: Iterable[MoveStands]) -> list[MoveStands]:
    """Return each move once, newest first. If two cells list a move, return the entry of the cell that now
    runs it.
    """
    every = list(found)
    known = {move.move for move in every if not move.in_cell}
    one_each = {move.move: move for move in every if not move.in_cell or move.move not in known}
    return sorted(one_each.values(), key=lambda merged_move: (-merged_move.since, merged_move.move))


@dataclass(frozen=True, kw_only=True)
class DrainShown:
    root: str
    host: str
    cell: str
    left: int | None  # instances on the host; None: its cell does not answer
    moved: int
    running: int
    causes: tuple[str, ...]  # other causes for which the host is disabled
    runs_here: bool  # whether this control room runs the drain
    problem: str
    unmoved: tuple[tuple[str, str], ...] = ()  # build, and the reason

    @property
    def share(self) -> float:
        """Return which share of the guests to drain has left the host, from 0 to 1; 0 if unknown."""
        if self.left is None:
            return 0.0
        return self.moved / (self.moved + self.left) if self.left else 1.0


def left_host(host: str, moves: Sequence[MoveStands], now: float) -> int:
    """Return how many guests left a host in the last 24 hours and after the last arrival of a guest. `moves`:
    moves from or to the host, the newest first.
    """
    count = 0
    for move in moves:
        if not move.ended or move.phase != "done":
            continue
        if now - move.ended > A_DAY or move.source != host:
            break
        count += 1
    return count


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
    """The counts of builds and of moves that ended within one period of five seconds, by their result."""

    number: int
    ends: Counter[str] = field(default_factory=Counter)  # by status
    durations: Counter[int] = field(default_factory=Counter)  # of active builds
    causes: Counter[str] = field(default_factory=Counter)
    host_failures: int = 0
    moves: Counter[str] = field(default_factory=Counter)  # by result


class BuildHistory:
    """Counts the builds and moves that ended in the last ten minutes, and lists the last ended builds."""

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
        if not tick.ends and not tick.moves and not tick.host_failures:
            continue
        whole.ends.update(tick.ends)
        whole.durations.update(tick.durations)
        whole.causes.update(tick.causes)
        whole.moves.update(tick.moves)
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

"""Estimates when waiting requests start, and new requests are evaluated, from the recent speed of their
queues, and corrects itself.

A class of requests *advances* when one of its waiting requests leaves the queue. Its pace is a pair: the
number of advances, and the seconds in which the class had waiting requests; older advances count less. The
estimates are corrected by comparison with actual waits (`core/calibration.py`).

The new requests of a project are a class that is only counted, once a second, because there are many. They
leave in batches: an advance is as many requests as left together recently. A few of them are *probes*, whose
estimates are compared.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

import msgspec

from bus.vocabulary import Id
from features.waiting.core.calibration import P50, P90, Calibration, Correction, StartEstimate, log_wait

# Each: an average over about so many advances; after as many further ones, an advance counts 1/e.
MEMORIES = (32, 128, 512, 2048)
LOOKS_BACK = 2  # an estimate for position n averages over 2 n advances or more, if the pace is unchanged
CHANGED = 2.0  # two averages differ by more than so many standard deviations: the pace has changed
LEAST_ADVANCES = 2.0  # with fewer advances of a class, the pace of related classes is used
EXTRAPOLATION = 0.2  # variance per (log (position ÷ advances))², for positions beyond the measured ones
PACE_CHANGES = 0.01  # variance of the logarithm of the pace (10 %): it may change before the request starts
# The same for new requests, whose pace depends on the floods of other projects: at least, and for each
# (log (1 + minutes until the evaluation))².
EVALUATION_CHANGES, LATER_CHANGES = 0.1, 0.3
MOST_CLASSES = 512  # classes with a history in memory
MOST_STORED = 128  # classes in the stored history, and as many of new requests
EVALUATION = "evaluation"  # what new requests lack
SIZES = 8  # the number of requests that left together is averaged over about so many measurements
MOST_PROBES = 16  # probes of a project at a time: more would all be late after one change of the pace
MOST_PROBED = 64  # projects with probes at a time
GOLDEN = 0.618034  # multiples of it, modulo 1, are spread evenly


def _zeros() -> list[float]:
    return [0.0] * len(MEMORIES)


class ClassHistory(msgspec.Struct, omit_defaults=True):
    """The speed at which the queue of one equivalence class advanced recently, averaged over several numbers
    of advances (`MEMORIES`), and the corrections of its estimated start times for each priority.
    """

    lacks: str = ""  # resource classes that requests of the class wait for, as a text
    advances: list[float] = msgspec.field(default_factory=_zeros)
    seconds: list[float] = msgspec.field(default_factory=_zeros)
    waiting: int = 0
    corrections: dict[int, Correction] = msgspec.field(default_factory=dict)
    together: float = 1.0  # number of requests of an advance
    unstored: int = 0  # new requests that are only in memory: they precede the stored ones

    def advance(self, requests: int, seconds: float = 0.0) -> None:
        """Count requests that left the queue, at equal distances in the last `seconds`."""
        if not requests:
            self.seconds[:] = [before + seconds for before in self.seconds]
            return
        advances = requests / self.together
        for at, memory in enumerate(MEMORIES):
            left = (1 - 1 / memory) ** advances
            self.advances[at] = self.advances[at] * left + memory * (1 - left)
            self.seconds[at] = self.seconds[at] * left + seconds / advances * memory * (1 - left)

    def pace(self, position: float) -> tuple[float, float]:
        """Return a number of requests that left the queue and the seconds that this took, to estimate the
        start of the request at this position. They are averages over many recent advances (`MEMORIES`): as
        many as the position requires, unless the pace has changed, so that averages over fewer advances
        differ.
        """
        if min(self.advances) < LEAST_ADVANCES or min(self.seconds) <= 0.0:
            return self.advances[-1], self.seconds[-1]
        logs = [math.log(each / self.seconds[at]) for at, each in enumerate(self.advances)]
        best = 0
        for at in range(1, len(MEMORIES)):
            differs = any(
                abs(logs[at] - logs[shorter]) > CHANGED / math.sqrt(self.advances[shorter])
                for shorter in range(at)
            )
            if differs or MEMORIES[at - 1] >= LOOKS_BACK * position:
                break
            best = at
        return self.advances[best], self.seconds[best]

    def rounded(self) -> "ClassHistory":
        """Return a copy with rounded numbers, which need less space: the history is stored once a second."""
        advances, seconds = (
            [float(f"{number:.5g}") for number in each] for each in (self.advances, self.seconds)
        )
        corrections = {priority: each.rounded() for priority, each in self.corrections.items()}
        together = float(f"{self.together:.5g}")
        return ClassHistory(self.lacks, advances, seconds, self.waiting, corrections, together, self.unstored)


Histories = Mapping[str, ClassHistory]


def new_kind(project: str) -> str:
    """Return the class of the new requests of a project."""
    return f"new {project}"


def estimate(histories: Histories, kind: str, priority: int, position: int) -> StartEstimate | None:
    """Return when the request at this position of an equivalence class (`kind`) starts, or None if there is
    no history of the class or of classes that lack the same resources.
    """
    history = histories.get(kind)
    spread = None if history is None else _spread(histories, history, position / history.together)
    if history is None or spread is None:
        return None
    correction = history.corrections.get(priority) or _any_correction(history)
    return correction.estimate(*spread)


def _any_correction(history: ClassHistory) -> Correction:
    return next(iter(history.corrections.values()), Correction())


def _spread(histories: Histories, history: ClassHistory, position: float) -> tuple[float, float] | None:
    """Return the mean and the standard deviation of the logarithm of the seconds until the request at a
    position starts; None: too few measurements.
    """
    position = max(position, 1.0)
    advances, seconds = history.pace(position)
    if advances < LEAST_ADVANCES:
        related = [other.pace(position) for other in histories.values() if other.lacks == history.lacks]
        others = sum(many for many, _ in related) - advances
        if others < LEAST_ADVANCES:
            return None
        seconds += (sum(some for _, some in related) - seconds) * LEAST_ADVANCES / others
        advances += LEAST_ADVANCES
    if seconds <= 0.0:
        return None
    mean, variance = log_wait(position, advances, seconds)
    beyond = max(math.log(position / advances), 0.0)
    changes = PACE_CHANGES
    if history.lacks == EVALUATION:
        changes = EVALUATION_CHANGES + LATER_CHANGES * math.log1p(math.exp(mean) / 60.0) ** 2
    return mean, math.sqrt(variance + changes + EXTRAPOLATION * beyond**2)


@dataclass(slots=True)
class _Expected:
    """The estimate that a request had when it began to wait, until it is compared with the actual start."""

    kind: str
    priority: int
    due: tuple[float, float] | None  # times of p50 and p90; None: no estimate was possible
    open: list[bool] = field(default_factory=lambda: [True, True])


@dataclass(slots=True, eq=False)
class NewCounts:
    """Counts of one project's stored requests that are not evaluated, by priority."""

    left: Counter[int] = field(default_factory=Counter)
    done: Counter[int] = field(default_factory=Counter)  # evaluated since these counts began

    def on_done(self, priority: int) -> None:
        """Count a new request as handled."""
        self.left[priority] -= 1
        self.done[priority] += 1


@dataclass(slots=True, eq=False)
class _Probe:
    """The estimate of a new request that is evaluated when `target` requests of its priority are."""

    expected: _Expected
    target: int


@dataclass(slots=True, eq=False)
class _Counted:
    """The counts of a class at its last measurement (`at`), and its probes."""

    counts: NewCounts
    at: float
    done: dict[int, int]
    probes: list[_Probe] = field(default_factory=list)

    def evaluated(self, probe: _Probe, now: float) -> float | None:
        """Return when a probe was evaluated, if the requests since the last measurement were evaluated at
        equal distances; None: not yet.
        """
        priority = probe.expected.priority
        before, done = self.done.get(priority, 0), self.counts.done[priority]
        if done < probe.target:
            return None
        return self.at + (now - self.at) * (probe.target - before) / max(done - before, 1)


class StartTimes:
    """Measures how fast each queue of one scheduler advances, to estimate start times. Callers pass the time,
    from a clock that never goes back.
    """

    def __init__(self) -> None:
        self.histories: dict[str, ClassHistory] = {}
        self._at: dict[str, float] = {}  # class → when its waiting seconds were counted last
        self._expected: dict[Id, _Expected] = {}
        self._due: list[tuple[float, int, Id]] = []  # a heap: time of a quantile, quantile, request
        self.calibration = Calibration()
        self.evaluations = Calibration()  # of new requests
        self._counted: dict[str, _Counted] = {}  # by class
        self._probes = 0  # number of probes until now
        self._most_classes = MOST_CLASSES  # with more, `enter` forgets those without requests

    def measure(self, new: Mapping[str, NewCounts], unstored: Mapping[str, int], now: float) -> None:
        """Measure how fast the new requests of each project are evaluated; both mappings are by project."""
        present = {new_kind(project): counts for project, counts in new.items()}
        for kind, counted in list(self._counted.items()):
            self._measure(kind, counted, now)
            if present.get(kind) is not counted.counts:  # the project has no new requests, or other ones
                self.histories[kind].waiting = 0
                del self._counted[kind]
        for project, counts in new.items():
            kind = new_kind(project)
            history = self._class(kind, EVALUATION, now)
            if kind not in self._counted:
                self._counted[kind] = _Counted(counts, now, dict(counts.done))
            history.waiting, history.unstored = counts.left.total(), unstored.get(project, 0)
        for kind in sorted(present, key=lambda kind: -present[kind].left.total())[:MOST_PROBED]:
            self._probe(kind, self._counted[kind], now)
        self._forget_classes()

    def _measure(self, kind: str, counted: _Counted, now: float) -> None:
        history = self.histories[kind]
        requests = counted.counts.done.total() - sum(counted.done.values())
        if requests:
            first = history.advances[0] == 0.0
            history.together += (requests - history.together) / (1 if first else SIZES)
            history.together = max(history.together, 1.0)
        history.advance(requests, now - counted.at)
        waiting = list[_Probe]()
        for probe in counted.probes:
            at, expected = counted.evaluated(probe, now), probe.expected
            for quantile in (P50, P90):
                late = expected.due is not None and expected.due[quantile] < (now if at is None else at)
                if late or at is not None:
                    self._compare(expected, quantile, late=late)
            if at is None and any(expected.open):
                waiting.append(probe)
        counted.at, counted.done, counted.probes = now, dict(counted.counts.done), waiting

    def _probe(self, kind: str, counted: _Counted, now: float) -> None:
        """Estimate when a new request of a project is evaluated, at a position that varies."""
        counts = counted.counts
        history = self.histories[kind]
        if history.waiting <= 0 or len(counted.probes) >= MOST_PROBES:
            return
        self._probes += 1
        before = rest = int(self._probes * GOLDEN % 1.0 * history.waiting)
        for priority in sorted(counts.left, reverse=True):
            if rest < counts.left[priority]:
                history.corrections.setdefault(priority, self.evaluations.new_correction())
                start = estimate(self.histories, kind, priority, before + history.unstored + 1)
                if start is not None:
                    expected = _Expected(kind, priority, (now + start.p50, now + start.p90))
                    counted.probes.append(_Probe(expected, counts.done[priority] + rest + 1))
                return
            rest -= counts.left[priority]

    def enter(self, request: Id, kind: str, lacks: str, priority: int, position: int, now: float) -> None:
        """Record that a request waits at a position of its equivalence class (`kind`) for resource classes
        (`lacks`). Nothing changes if it waits in this class already.
        """
        before = self._expected.get(request)
        if before is not None and before.kind == kind:
            return
        if before is not None:
            self.forget(request, now)
        self._pass(now)
        history = self._class(kind, lacks, now)
        correction = history.corrections.get(priority)
        if correction is None:
            correction = history.corrections[priority] = self.calibration.new_correction()
        start = estimate(self.histories, kind, priority, position)
        history.waiting += 1
        if len(self.histories) > self._most_classes:
            self._forget_classes()
        if start is None:
            self._expected[request] = _Expected(kind, priority, None)
            return
        due = now + start.p50, now + start.p90
        self._expected[request] = _Expected(kind, priority, due)
        heappush(self._due, (due[P50], P50, request))

    def leave(self, request: Id, now: float, *, started: bool) -> None:
        """Record that a waiting request has left its queue. If it got a host (`started`), compare the actual
        start with the estimated times.
        """
        self._pass(now)
        expected = self._expected.get(request)
        if expected is None:
            return
        self.forget(request, now)
        self.histories[expected.kind].advance(1)
        if started and expected.due is not None:
            for quantile in (P50, P90):
                self._compare(expected, quantile, late=False)

    def forget(self, request: Id, now: float) -> None:
        """Drop a waiting request that waits in another queue or scheduler from now on. This does not count as
        an advance of its queue.
        """
        expected = self._expected.pop(request, None)
        if expected is not None:
            self._count_seconds(expected.kind, now)
            self.histories[expected.kind].waiting -= 1

    def estimate(self, kind: str, priority: int, position: int, now: float) -> StartEstimate | None:
        """Return when the request at a position of a class starts, as seconds from now; None: unknown."""
        if kind not in self.histories:
            return None
        self._pass(now)
        self._count_seconds(kind, now)
        return estimate(self.histories, kind, priority, position)

    @property
    def waiting(self) -> int:
        return len(self._expected) + len(self._counted)

    def stored(self, now: float) -> dict[str, ClassHistory]:
        """Return the histories to store, by class: those with the most waiting requests, then the last used;
        of new requests as many again.
        """
        self._pass(now)
        ordered = list(reversed(self.histories))
        ordered.sort(key=lambda kind: -self.histories[kind].waiting)
        new = [kind for kind in ordered if self.histories[kind].lacks == EVALUATION]
        waiting = [kind for kind in ordered if self.histories[kind].lacks != EVALUATION]
        kinds = waiting[:MOST_STORED] + new[:MOST_STORED]
        for kind in kinds:
            self._count_seconds(kind, now)
        return {kind: self.histories[kind].rounded() for kind in kinds}

    def adopt(self, histories: Histories, now: float) -> None:
        """Take over the stored measurements of how fast queues advanced, from a scheduler that ended, for
        each class in which that scheduler measured more requests than this scheduler.
        """
        for kind, history in histories.items():
            known = self.histories.get(kind, ClassHistory())
            if known.advances[-1] < history.advances[-1]:
                history.waiting = known.waiting
                history.corrections |= known.corrections
                self.histories[kind] = history
                self._at[kind] = now
        self._forget_classes()

    def _class(self, kind: str, lacks: str, now: float) -> ClassHistory:
        history = self.histories.pop(kind, None)
        if history is None:
            history = ClassHistory()
            self._at[kind] = now
        history.lacks = lacks
        self.histories[kind] = history  # the most recently used class is the last one
        self._count_seconds(kind, now)
        return history

    def _forget_classes(self) -> None:
        """Forget the classes without requests that were used first."""
        idle = [
            kind for kind, each in self.histories.items() if not each.waiting and kind not in self._counted
        ]
        for kind in idle[: max(len(self.histories) - MOST_CLASSES, 0)]:
            del self.histories[kind], self._at[kind]
        self._most_classes = max(2 * len(self.histories) - MOST_CLASSES, MOST_CLASSES)

    def _count_seconds(self, kind: str, now: float) -> None:
        """Add the seconds since the last count to a class's waiting seconds, if any of its requests wait."""
        history, since = self.histories[kind], now - self._at[kind]
        self._at[kind] = now
        if history.waiting and history.lacks != EVALUATION:  # new requests: by `measure`
            history.advance(0, since)

    def _pass(self, now: float) -> None:
        """Count a request as late for a quantile if it still waits after the time of the quantile."""
        while self._due and self._due[0][0] < now:
            _, quantile, request = heappop(self._due)
            expected = self._expected.get(request)
            if expected is None or expected.due is None:
                continue
            self._compare(expected, quantile, late=True)
            if quantile == P50:
                heappush(self._due, (expected.due[P90], P90, request))

    def _compare(self, expected: _Expected, quantile: int, *, late: bool) -> None:
        if not expected.open[quantile]:
            return
        expected.open[quantile] = False
        history = self.histories[expected.kind]
        calibration = self.evaluations if history.lacks == EVALUATION else self.calibration
        calibration.compare(history.corrections[expected.priority], quantile, late=late)

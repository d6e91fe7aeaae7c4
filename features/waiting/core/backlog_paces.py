"""Estimates when requests in the backlog are evaluated, from the pace at which each project is served.

Once a second the requests that were served since the last measurement are counted for each project that has a
backlog. Requests are served in batches, so the counts vary: the dispersion (variance ÷ mean of a count) is
the number of requests that are served together, as if one request. Each request costs two additions, and
nothing is stored for it. A few requests are *probes*: their estimates are compared with the times when they
were evaluated, and correct later estimates.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from features.waiting.core.calibration import P50, P90, Calibration, Correction, StartEstimate, log_wait

MEMORY = 60.0  # seconds after which a served request counts 1/e (37 %)
LEAST_SAMPLES = 3.0  # with fewer measurements of a project, its pace is unknown
# The pace may change before a request is evaluated: variance of its logarithm, at least, and for each
# (log (1 + wait ÷ MEMORY))².
PACE_CHANGES, LATER_CHANGES = 0.1, 0.3
MOST_PROBES = 16  # probes of a project at a time: more would all be late after one change of the pace
MOST_PROBED = 64  # projects with probes at a time
MOST_PROJECTS = 256  # projects with a pace in memory
MOST_STORED = 64  # projects in the stored paces
GOLDEN = 0.618034  # multiples of it, modulo 1, are spread evenly


class BacklogPace(msgspec.Struct, omit_defaults=True):
    """The pace of one project in the backlog: requests served in the last minute; older ones count less."""

    served: float = 0.0  # requests
    seconds: float = 0.0
    squares: float = 0.0  # the sum of (requests of a measurement)² ÷ its seconds
    samples: float = 0.0  # measurements
    unstored: int = 0  # requests of the project that are only in memory: they precede the stored requests
    corrections: dict[int, Correction] = msgspec.field(default_factory=dict)  # by priority

    def add(self, served: int, seconds: float) -> None:
        """Add a measurement: requests that were served in this time."""
        left = math.exp(-seconds / MEMORY)
        self.served = self.served * left + served
        self.seconds = self.seconds * left + seconds
        self.squares = self.squares * left + served**2 / seconds
        self.samples = self.samples * left + 1

    def estimate(self, priority: int, before: int) -> StartEstimate | None:
        """Return when a request is evaluated that is preceded by this number of stored requests of its
        project, or None if too little was measured.
        """
        if self.samples < LEAST_SAMPLES or self.served <= 0.0:
            return None
        together = self._dispersion
        position, served = max((before + self.unstored + 1) / together, 1.0), self.served / together
        mean, variance = log_wait(position, served, self.seconds)
        later = math.log1p(position / self.served * together * self.seconds / MEMORY)
        correction = self.corrections.get(priority) or next(iter(self.corrections.values()), Correction())
        return correction.estimate(mean, math.sqrt(variance + PACE_CHANGES + LATER_CHANGES * later**2))

    @property
    def _dispersion(self) -> float:
        """Return how many requests are served together, from the variance of the measurements."""
        rest = max(self.squares - self.served**2 / self.seconds, 0.0)
        return max(rest / (self.samples - 1) * self.seconds / self.served, 1.0)

    def rounded(self) -> "BacklogPace":
        """Return a copy with rounded numbers, which need less space: the pace is stored once a second."""
        served, seconds, squares, samples = (
            float(f"{number:.5g}") for number in (self.served, self.seconds, self.squares, self.samples)
        )
        corrections = {priority: each.rounded() for priority, each in self.corrections.items()}
        return BacklogPace(served, seconds, squares, samples, self.unstored, corrections)


@dataclass(slots=True, eq=False)
class BacklogCounts:
    """Counts of one project's requests since its backlog began."""

    left: Counter[int] = field(default_factory=Counter)  # stored and not evaluated, by priority
    done: Counter[int] = field(default_factory=Counter)  # stored and evaluated, by priority
    taken: int = 0  # given to the handlers, stored or not

    def on_stored(self, priority: int, requests: int) -> None:
        self.left[priority] += requests

    def on_done(self, priority: int) -> None:
        self.left[priority] -= 1
        self.done[priority] += 1


@dataclass(slots=True, eq=False)
class _Probe:
    """A request in the backlog that is evaluated when `target` requests of its priority are."""

    priority: int
    target: int
    due: tuple[float, float]  # times of p50 and p90
    open: list[bool] = field(default_factory=lambda: [True, True])


@dataclass(slots=True, eq=False)
class _Measured:
    """The counts of a project at its last measurement (`at`), and its probes."""

    counts: BacklogCounts
    at: float
    taken: int
    done: dict[int, int]
    probes: list[_Probe] = field(default_factory=list)

    def evaluated(self, probe: _Probe, now: float) -> float | None:
        """Return when a probe was evaluated, if the requests since the last measurement were evaluated at
        equal distances; None: not yet.
        """
        before, done = self.done.get(probe.priority, 0), self.counts.done[probe.priority]
        if done < probe.target:
            return None
        return self.at + (now - self.at) * (probe.target - before) / max(done - before, 1)


class BacklogPaces:
    """Measures how fast one scheduler serves the backlog of each project. Callers pass the time, from a clock
    that never goes back.
    """

    def __init__(self) -> None:
        self.paces: dict[str, BacklogPace] = {}  # the project measured last is the last one
        self.calibration = Calibration()
        self._measured: dict[str, _Measured] = {}  # projects that have a backlog
        self._probes = 0  # number of probes until now

    def measure(
        self, backlogs: Mapping[str, BacklogCounts], unstored: Mapping[str, int], now: float
    ) -> dict[str, BacklogPace]:
        """Measure the pace of all projects with a backlog. `unstored` has the numbers of their requests that
        are only in memory. Return the paces to store: those of the projects with the largest backlogs.
        """
        for project, measured in list(self._measured.items()):
            self._compare(project, measured, now)
            if backlogs.get(project) is not measured.counts:  # the backlog has ended or changed its owner
                del self._measured[project]
        largest = sorted(backlogs, key=lambda project: -backlogs[project].left.total())
        for project in reversed(largest):
            counts = backlogs[project]
            known = self._measured.get(project)
            if known is None:
                self._measured[project] = _Measured(counts, now, counts.taken, dict(counts.done))
            elif known.at < now:
                self._add(project, known, unstored.get(project, 0), now)
        for project in largest[:MOST_PROBED]:
            self._probe(project, self._measured[project], now)
        for project in list(self.paces)[: max(len(self.paces) - MOST_PROJECTS, 0)]:
            del self.paces[project]
        return {name: self.paces[name].rounded() for name in largest[:MOST_STORED] if name in self.paces}

    def adopt(self, paces: Mapping[str, BacklogPace]) -> None:
        """Take over the paces of a scheduler that ended, for projects of which it measured more."""
        for project, pace in paces.items():
            if self.paces.get(project, BacklogPace()).seconds < pace.seconds:
                self.paces[project] = pace

    def _add(self, project: str, known: _Measured, unstored: int, now: float) -> None:
        pace = self.paces.pop(project, None) or BacklogPace()
        self.paces[project] = pace
        pace.add(known.counts.taken - known.taken, now - known.at)
        pace.unstored = unstored
        known.at, known.taken, known.done = now, known.counts.taken, dict(known.counts.done)

    def _probe(self, project: str, known: _Measured, now: float) -> None:
        """Estimate when a request of the project is evaluated, at a position that varies."""
        pace, left = self.paces.get(project), known.counts.left.total()
        if pace is None or left <= 0 or len(known.probes) >= MOST_PROBES:
            return
        self._probes += 1
        before = rest = int(self._probes * GOLDEN % 1.0 * left)
        for priority in sorted(known.counts.left, reverse=True):
            if rest < known.counts.left[priority]:
                pace.corrections.setdefault(priority, self.calibration.new_correction())
                if (start := pace.estimate(priority, before)) is not None:
                    target = known.counts.done[priority] + rest + 1
                    known.probes.append(_Probe(priority, target, (now + start.p50, now + start.p90)))
                return
            rest -= known.counts.left[priority]

    def _compare(self, project: str, known: _Measured, now: float) -> None:
        """Compare the estimates of probes that were evaluated, or are late."""
        pace, waiting = self.paces.get(project), list[_Probe]()
        for probe in known.probes:
            at = known.evaluated(probe, now)
            for quantile in (P50, P90):
                late = probe.due[quantile] < (now if at is None else at)
                if probe.open[quantile] and (late or at is not None) and pace is not None:
                    probe.open[quantile] = False
                    correction = pace.corrections.setdefault(
                        probe.priority, self.calibration.new_correction()
                    )
                    self.calibration.compare(correction, quantile, late=late)
            if at is None and any(probe.open):
                waiting.append(probe)
        known.probes = waiting

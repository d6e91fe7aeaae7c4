"""Compares the start times that requests were given when they began to wait with their actual starts."""

from dataclasses import dataclass, field

from features.waiting.core.calibration import StartEstimate
from features.waiting.core.start_times import StartTimes


@dataclass
class ComparedWaits:
    """Observes a simulated cloud; records for each wait its length and the estimate at its beginning."""

    times: StartTimes = field(default_factory=StartTimes)
    waits: list[tuple[float, StartEstimate]] = field(default_factory=list)
    unknown: int = 0
    last: float = 0.0
    _open: dict[str, tuple[float, StartEstimate | None]] = field(default_factory=dict)

    def enter(self, request: str, kind: str, lacks: str, priority: int, position: int, now: float) -> None:
        self.times.enter(request, kind, lacks, priority, position, now)
        estimate = self.times.estimate(kind, priority, position, now)
        self.unknown += estimate is None
        self._open[request] = now, estimate
        self.last = now

    def leave(self, request: str, now: float, *, started: bool) -> None:
        self.times.leave(request, now, started=started)
        since, estimate = self._open.pop(request)
        self.last = now
        if estimate is not None and (started or now - since > estimate.p90):
            self.waits.append((now - since, estimate))

    def finish(self) -> None:
        """Count requests that still wait after their p90: leaving them out would count only short waits."""
        for since, estimate in self._open.values():
            if estimate is not None and self.last - since > estimate.p90:
                self.waits.append((self.last - since, estimate))

    @property
    def before_p50(self) -> float:
        return sum(wait <= estimate.p50 for wait, estimate in self.waits) / len(self.waits)

    @property
    def before_p90(self) -> float:
        return sum(wait <= estimate.p90 for wait, estimate in self.waits) / len(self.waits)

    @property
    def width(self) -> float:
        """Return the median of p90 ÷ p50."""
        return sorted(estimate.p90 / estimate.p50 for _, estimate in self.waits)[len(self.waits) // 2]

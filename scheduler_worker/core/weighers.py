"""Weighers: a host and a request → a number; more is better, a negative multiplier turns it round."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bus.messages import BuildRequested
from scheduler_worker.core.host import Host

Weigher = Callable[[Host, BuildRequested], float]


@dataclass(frozen=True, slots=True)
class Weight:
    """A weigher, how much it counts, and where its scale begins (None: at the least of the list)."""

    weigher: Weigher
    multiplier: float = 1.0
    lowest: float | None = None

    def scale(self, values: Sequence[float]) -> "Scale":
        """Min-max over these hosts, as Nova normalises: the best gets 1, a list of equals 0."""
        lowest = min(values) if self.lowest is None else self.lowest
        span = max(values) - lowest
        if span <= 0:
            return Scale(self.weigher, 0.0, 0.0, False)
        return Scale(self.weigher, self.multiplier / span, lowest, self.lowest is not None)


@dataclass(frozen=True, slots=True)
class Scale:
    """A weight fitted to one list of hosts."""

    weigher: Weigher
    slope: float
    lowest: float
    clamped: bool

    def points(self, value: float) -> float:
        above = value - self.lowest
        return 0.0 if self.clamped and above < 0 else above * self.slope

    def score(self, host: Host, request: BuildRequested) -> float:
        return self.points(self.weigher(host, request)) if self.slope else 0.0


def free_ram(host: Host, request: BuildRequested) -> float:
    return host.free("MEMORY_MB")


def free_vcpu(host: Host, request: BuildRequested) -> float:
    return host.free("VCPU")


def load(host: Host, request: BuildRequested) -> float:
    return host.state.load if host.state is not None else 0.0


def builds_in_flight(host: Host, request: BuildRequested) -> float:
    return host.building


WEIGHERS: tuple[Weight, ...] = (
    Weight(free_ram, 1.0, lowest=0.0),
    Weight(free_vcpu, 1.0, lowest=0.0),
    Weight(load, -1.0),
    Weight(builds_in_flight, -1.0, lowest=0.0),
)

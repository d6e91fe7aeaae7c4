"""The history of the capacity by resource class or flavor, with its chart and a text of its forecast."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from msgspec import structs

from bus.protocol import Ask
from control_room.kit import Chart, chart, duration
from features.capacity_history.messages import CapacityFound, CapacityKind, CapacitySample, FindCapacity
from features.capacity_history.trend import CapacityForecast, forecast

CHART_POINTS = 200


@dataclass(frozen=True, kw_only=True)
class CapacityPoint:
    """The amounts of one resource class or flavor at one time, summed over zones."""

    at: float
    capacity: float = 0.0
    used: float = 0.0
    free: float = 0.0
    stranded: float = 0.0
    waiting: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CapacityHistory:
    """The points of one resource class or flavor, the oldest first, and the forecast."""

    kind: CapacityKind
    name: str
    points: Sequence[CapacityPoint]
    forecast: CapacityForecast

    @property
    def last(self) -> CapacityPoint:
        return self.points[-1]

    @property
    def chart(self) -> Chart:
        points = thinned(self.points, CHART_POINTS)
        if self.kind == "flavor":
            fits = [point.free for point in points]
            return chart([("fit", fits), ("waiting", [point.waiting for point in points])])
        used, usable = [point.used for point in points], [usable_of(point) for point in points]
        return chart([("used", used), ("can be used", usable)])


def usable_of(point: CapacityPoint) -> float:
    return point.capacity - point.stranded


def histories(samples: Iterable[CapacitySample]) -> list[CapacityHistory]:
    """Return the history of each resource class or flavor in the samples, sorted by kind and name."""
    sums: dict[tuple[CapacityKind, str], dict[float, list[float]]] = defaultdict(dict)
    for sample in samples:
        total = sums[sample.kind, sample.name].setdefault(sample.at, [0.0] * 5)
        figures = sample.capacity, sample.used, sample.free, sample.stranded, sample.waiting
        total[:] = [one + other for one, other in zip(total, figures, strict=True)]
    found = []
    for (kind, name), times in sorted(sums.items()):
        points = [_point(at, figures) for at, figures in sorted(times.items())]
        if kind == "flavor":  # full when the number of fitting instances is 0
            trend = forecast([(point.at, -point.free) for point in points], 0.0)
        else:
            trend = forecast([(point.at, point.used) for point in points], usable_of(points[-1]))
        found.append(CapacityHistory(kind=kind, name=name, points=points, forecast=trend))
    return found


def _point(at: float, figures: Sequence[float]) -> CapacityPoint:
    capacity, used, free, stranded, waiting = figures
    return CapacityPoint(at=at, capacity=capacity, used=used, free=free, stranded=stranded, waiting=waiting)


def thinned(points: Sequence[CapacityPoint], most: int) -> Sequence[CapacityPoint]:
    """Return at most `most` points, evenly chosen, with the first and the last point."""
    if len(points) <= most or most < 2:
        return points[-most:]
    return [points[round(at * (len(points) - 1) / (most - 1))] for at in range(most)]


def in_words(found: CapacityForecast, time_text: Callable[[float], str]) -> str:
    """Return a sentence about when the capacity is used up; `time_text` returns a time as text."""

    def day(at: float | None) -> str:
        return "-" if at is None else time_text(at)[:10]

    if found.trend == "too short":
        return f"no forecast yet: {duration(found.period)} of samples are too short"
    if found.trend == "full":
        return "used up now"
    if found.trend == "no trend":
        return f"no trend: between {found.least_a_day:+,.1f} and {found.most_a_day:+,.1f} a day"
    a_day = f"{found.a_day:+,.1f} a day ({found.least_a_day:+,.1f} to {found.most_a_day:+,.1f})"
    if found.trend == "falling":
        return f"not used up: {a_day}"
    if found.expected is None:
        earliest = f"; at the earliest {day(found.earliest)}" if found.earliest is not None else ""
        return f"{a_day}: not used up before {day(found.until)}{earliest}"
    expected = f"{a_day}: used up about {day(found.expected)}"
    if day(found.earliest) == day(found.latest):
        return expected
    latest = f"and {day(found.latest)}" if found.latest is not None else f"and after {day(found.until)}"
    return f"{expected}, between {day(found.earliest)} {latest}"


async def capacity_samples(
    ask: Ask[FindCapacity, CapacityFound], question: FindCapacity
) -> list[CapacitySample]:
    """Return all samples of the capacity that a query selects."""
    samples: list[CapacitySample] = []
    while True:
        found = await ask(question)
        samples += found.samples
        if found.last is None:
            return samples
        question = structs.replace(question, after=found.last)

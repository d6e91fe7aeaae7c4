"""Compares the figures of benchmarks between two runs.

Machines differ in speed, and one machine differs from hour to hour. So each benchmark also counts how often
a fixed loop runs in a second, and figures are compared relative to that. The rates of broker and database are
shown with the figures.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

WORSE = 0.10  # a figure that is worse by more than this share is marked

Better = Literal["up", "down"]


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A measured figure, and whether a larger value is better."""

    name: str
    value: float
    unit: str
    better: Better
    scales: Literal["clock", "processor", ""] = "clock"  # the speed that changes the figure


class Yardstick(msgspec.Struct, frozen=True):
    """The machine's speed: how often a fixed loop runs per second of real time, and of processor time; and
    what broker and database store in a second without berth (0: not measured).
    """

    clock: float
    processor: float
    publishes: float = 0.0
    inserts: float = 0.0

    @property
    def rates(self) -> tuple[Figure, ...]:
        """Return the rates of broker and database."""
        return (
            Figure("yardstick: confirmed publishes", self.publishes, "/s", "up"),
            Figure("yardstick: inserted rows", self.inserts, "/s", "up"),
        )


class Measured(msgspec.Struct, frozen=True):
    """The figures of one benchmark."""

    figures: tuple[Figure, ...]
    yardstick: Yardstick
    seconds: float


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the machine of a run, without names of people or hosts."""

    processor: str
    cores: int
    load: float  # load average at the begin of the run
    python: str
    rabbitmq: str
    postgresql: str


class BenchRun(msgspec.Struct, frozen=True, kw_only=True):
    """All results of a run, as they are stored in a file."""

    at: str
    commit: str
    long: bool
    machine: MachineFacts
    benches: dict[str, Measured]
    failed: dict[str, str] = {}  # benchmark → reason

    @property
    def seconds(self) -> float:
        return sum(bench.seconds for bench in self.benches.values())


class Compared(NamedTuple):
    """A figure with its value in the previous run."""

    bench: str
    figure: Figure
    was: float | None
    ratio: float | None  # how many times as good as before, corrected by the machines' speeds

    @property
    def worse(self) -> bool:
        if self.ratio is None:
            return False
        change = self.ratio if self.figure.better == "up" else 1 / self.ratio
        return change < 1 - WORSE if self.figure.better == "up" else change > 1 + WORSE


def compared(run: BenchRun, before: BenchRun | None) -> list[Compared]:
    """Return each figure of a run with the figure of that name in the previous run."""
    found = []
    for name, measured in run.benches.items():
        then = before.benches.get(name) if before else None
        known = {figure.name: figure for figure in then.figures} if then else {}
        for figure in measured.figures:
            was = known.get(figure.name)
            ratio = _ratio(figure, measured, was, then) if was and then else None
            found.append(Compared(name, figure, was.value if was else None, ratio))
        before_it = then.yardstick.rates if then else (None, None)
        found += [
            Compared(name, rate, was.value if was else None, None)
            for rate, was in zip(measured.yardstick.rates, before_it, strict=True)
            if rate.value
        ]
    return found


def _ratio(figure: Figure, now: Measured, was: Figure, then: Measured) -> float | None:
    ours, theirs = _normal(figure, now.yardstick), _normal(was, then.yardstick)
    if ours <= 0 or theirs <= 0:
        return None
    return ours / theirs if figure.better == "up" else theirs / ours


def _normal(figure: Figure, yardstick: Yardstick) -> float:
    """Return the figure's value converted to a machine that runs the yardstick's loop once per second."""
    if not figure.scales:
        return figure.value
    speed = yardstick.clock if figure.scales == "clock" else yardstick.processor
    return figure.value / speed if figure.better == "up" else figure.value * speed


def machine_ratio(run: BenchRun, before: BenchRun) -> Yardstick:
    """Return how many times faster the machine was in this run, by real time and by processor time: the
    median over the common benchmarks.
    """
    both = [
        (bench.yardstick, before.benches[name].yardstick)
        for name, bench in run.benches.items()
        if name in before.benches
    ]
    if not both:
        return Yardstick(1.0, 1.0)
    return Yardstick(
        statistics.median(ours.clock / theirs.clock for ours, theirs in both),
        statistics.median(ours.processor / theirs.processor for ours, theirs in both),
    )


def rows(found: Sequence[Compared]) -> list[tuple[str, str, str, str, str, str]]:
    """Return the rows of the comparison: benchmark, figure, ratio, present value, previous value, warning."""
    shown = []
    last = ""
    for bench, figure, was, ratio in found:
        compared = Compared(bench, figure, was, ratio)
        shown.append(
            (
                bench if bench != last else "",
                figure.name,
                f"{ratio:.2f} ×" if ratio is not None else "new" if was is None else "–",
                with_unit(figure.value, figure.unit),
                with_unit(was, figure.unit) if was is not None else "",
                "WORSE" if compared.worse else "",
            )
        )
        last = bench
    return shown


def with_unit(value: float, unit: str) -> str:
    """Return the value with its unit: three significant digits, or all digits before the decimal point."""
    size = abs(value)
    digits = 0 if size >= 100 or value == int(value) else 1 if size >= 10 else 2
    return f"{value:,.{digits}f} {unit}".rstrip()


def middle(values: Sequence[float]) -> float:
    """Return the median, or 0 without values."""
    return statistics.median(values) if values else 0.0


def middle_of(costs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median cost of each process over several runs; a run without the process counts as 0."""
    names = dict.fromkeys(name for cost in costs for name in cost)
    return {name: middle([cost.get(name, 0.0) for cost in costs]) for name in names}

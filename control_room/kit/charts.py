"""Draws line charts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 600, 120


@dataclass(frozen=True, slots=True)
class DrawnLine:
    """A line of a chart as the path of an SVG element."""

    name: str
    path: str  # empty: there is nothing to draw


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart that a template can draw. `empty`: no line has a value."""

    top: float  # value at the upper edge of the chart
    lines: tuple[DrawnLine, ...]
    empty: bool


def chart(series: Sequence[tuple[str, Sequence[float | None]]], least: float = 0.0) -> Chart:
    """Return a chart of one line per series (name, values), scaled from 0 to a round number that is not below
    `least`; None interrupts a line.
    """
    known = [value for _, values in series for value in values if value is not None]
    top = rounded_up(max([*known, least]))
    lines = tuple(DrawnLine(name, _path(values, top)) for name, values in series)
    return Chart(top, lines, not any(known))


def rounded_up(value: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20, ... (and of 0.5, 0.2, ...) that is not below the value."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 2, 5, 10) if step * unit >= value * 0.999999)


def _path(values: Sequence[float | None], top: float) -> str:
    parts, drawing = [], False
    across = WIDTH / max(1, len(values) - 1)
    for place, value in enumerate(values):
        if value is None:
            drawing = False
            continue
        x, y = place * across, HEIGHT - min(value / top, 1.0) * HEIGHT
        parts.append(f"{'L' if drawing else 'M'}{x:.0f} {y:.1f}")
        if not drawing and (place + 1 == len(values) or values[place + 1] is None):
            parts.append("h2")  # a single value is a dot
        drawing = True
    return "".join(parts)

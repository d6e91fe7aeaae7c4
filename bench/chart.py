"""Draws a benchmark run next to the previous run: processor time per boot by process, boots per second."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from bench.figures import BenchRun

_WIDTH, _TOP, _LEFT, _BAR, _GAP, _GROUP = 1000, 96, 190, 26, 6, 34
_COSTS, _SPEEDS, _BETWEEN = 460, 180, 80  # widths of the two halves and of the gap between them
_COLOURS = {
    "compute": "#4a6fa5",
    "conductor": "#c0504d",
    "PostgreSQL": "#8c6bb1",
    "RabbitMQ": "#e08214",
    "scheduler": "#1b7837",
    "placement": "#7fbf7b",
    "others": "#b0b0b0",
}
_WHICH = {"one_flavor": "one flavor", "boots": "several flavors", "other_hosts": ""}
_LETTER = 6.2  # width of a letter in pixels, in the size of the numbers in bars


class BootBar(NamedTuple):
    """A bar of the chart: a load in this or the previous run, its parts in milliseconds, its boots per
    second.
    """

    load: str
    now: bool
    parts: Mapping[str, float]
    speed: float


def boot_bars(run: BenchRun, before: BenchRun | None) -> list[BootBar]:
    """Return the bars of the chart: for each load the bar of the run `before`, if that run has the load, and
    below it the bar of this run.
    """
    bars = []
    for bench, words in _WHICH.items():
        for recorded, now in ((before, False), (run, True)):
            if recorded is None or not words or bench not in recorded.benches or bench not in run.benches:
                continue
            figures = {figure.name: figure.value for figure in recorded.benches[bench].figures}
            parts = {name: figures.get(f"processor of {name}", 0.0) for name in _COLOURS}
            parts["others"] = max(figures.get("processor a boot", 0.0) - sum(parts.values()), 0.0)
            bars.append(BootBar(words, now, parts, figures.get("boots/s", 0.0)))
    return bars


def chart_svg(run: BenchRun, before: BenchRun | None) -> str:
    bars = boot_bars(run, before)
    title = f"berth {run.commit}" + (f", compared with {before.commit}" if before else "")
    if not bars:
        return _page(title, 160, ['<text x="500" y="110" text-anchor="middle">no boots were measured</text>'])
    dearest = max(sum(bar.parts.values()) for bar in bars) or 1.0
    quickest = max(bar.speed for bar in bars) or 1.0
    right = _LEFT + _COSTS + _BETWEEN
    parts = _legend()
    parts += [
        f'<text x="{_LEFT}" y="{_TOP - 12}" font-size="13">milliseconds of processor a boot</text>',
        f'<text x="{right}" y="{_TOP - 12}" font-size="13">boots a second</text>',
    ]
    top, last = float(_TOP), ""
    for bar in bars:
        if last and bar.load != last:
            top += _GROUP - _GAP
        if bar.load != last:
            parts.append(f'<text x="20" y="{top + 18}" font-weight="bold">{escape(bar.load)}</text>')
        last = bar.load
        parts.append(
            f'<text x="{_LEFT - 8}" y="{top + 18}" text-anchor="end">{"now" if bar.now else "then"}</text>'
        )
        parts += _cost(bar, top, _COSTS / dearest)
        tall = bar.speed / quickest * _SPEEDS
        colour = "#1b7837" if bar.now else "#a6c8ab"
        parts += [
            f'<rect x="{right}" y="{top}" width="{tall:.1f}" height="{_BAR}" fill="{colour}"/>',
            f'<text x="{right + tall + 6:.1f}" y="{top + 18}">{bar.speed:,.0f}</text>',
        ]
        top += _BAR + _GAP
    return _page(title, int(top) + 24, parts)


def _cost(bar: BootBar, top: float, scale: float) -> list[str]:
    """Return the SVG elements of a bar: its parts, then their sum. `top`: upper edge; `scale`: pixels per
    millisecond.
    """
    drawn, left = [], float(_LEFT)
    pale = "" if bar.now else ' opacity=".55"'
    for name, spent in bar.parts.items():
        wide = spent * scale
        drawn.append(
            f'<rect x="{left:.1f}" y="{top}" width="{wide:.1f}" height="{_BAR}"'
            f' fill="{_COLOURS[name]}"{pale}/>'
        )
        words = f"{spent:.2f}"
        if wide > len(words) * _LETTER + 4:
            drawn.append(
                f'<text x="{left + wide / 2:.1f}" y="{top + 17}" text-anchor="middle" font-size="11"'
                f' fill="{"white" if bar.now else "black"}">{words}</text>'
            )
        left += wide
    drawn.append(
        f'<text x="{left + 6:.1f}" y="{top + 18}" font-weight="bold">{sum(bar.parts.values()):.2f}</text>'
    )
    return drawn


def _legend() -> list[str]:
    drawn, left = [], float(_LEFT)
    for name, colour in _COLOURS.items():
        drawn += [
            f'<rect x="{left:.0f}" y="46" width="14" height="14" fill="{colour}"/>',
            f'<text x="{left + 20:.0f}" y="58">{name}</text>',
        ]
        left += 44 + 7.2 * len(name)
    return drawn


def _page(title: str, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="12">'
        '<rect width="100%" height="100%" fill="white"/>'
        f'<text x="20" y="28" font-size="16">{escape(title)}</text>' + "".join(parts) + "</svg>\n"
    )

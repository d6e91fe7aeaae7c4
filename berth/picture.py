"""A load as a picture: each boot's latency over time, with percentiles and throughput, as one SVG file."""

from collections.abc import Sequence
from html import escape

from berth.loadtest import LoadOutcome, percentile

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 960, 460, 70, 60, 60
_PLOT_WIDTH, _PLOT_HEIGHT = _WIDTH - _LEFT - 70, _HEIGHT - _TOP - _BOTTOM
_LINES = ((0.5, "p50", "#1b7837"), (0.95, "p95", "#e08214"), (0.99, "p99", "#b2182b"))
_MOST_DOTS = 4000


def latency_svg(result: LoadOutcome, title: str) -> str:
    ended = sorted((b.ended, b.latency * 1000) for b in result.boots.values() if b.ended)
    if not ended:
        return _page(title, ['<text x="480" y="230" text-anchor="middle">no boot ended</text>'])
    width = max(ended[-1][0], 0.001)
    height = _rounded_up(max(latency for _, latency in ended))
    bins = _bins(ended, width)
    busiest = _rounded_up(max(len(latencies) / (width / len(bins)) for latencies in bins))

    def x(seconds: float) -> float:
        return _LEFT + seconds / width * _PLOT_WIDTH

    def y(milliseconds: float) -> float:
        return _TOP + _PLOT_HEIGHT * (1 - milliseconds / height)

    parts = _axes(width, height, busiest)
    step = width / len(bins)
    for index, latencies in enumerate(bins):
        tall = len(latencies) / step / busiest * _PLOT_HEIGHT
        parts.append(
            f'<rect x="{x(index * step):.1f}" y="{_TOP + _PLOT_HEIGHT - tall:.1f}" '
            f'width="{step / width * _PLOT_WIDTH - 1:.1f}" height="{tall:.1f}" fill="#d9e6f2"/>'
        )
    for seconds, latency in ended[:: max(1, len(ended) // _MOST_DOTS)]:
        parts.append(
            f'<circle cx="{x(seconds):.1f}" cy="{y(latency):.1f}" r="1.2" fill="#4a6fa5" opacity=".35"/>'
        )
    for place, (share, name, colour) in enumerate(_LINES):
        points = " ".join(
            f"{x((index + 0.5) * step):.1f},{y(percentile(latencies, share)):.1f}"
            for index, latencies in enumerate(bins)
            if latencies
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        left = _LEFT + 10 + place * 150
        parts.append(
            f'<line x1="{left}" x2="{left + 22}" y1="44" y2="44" stroke="{colour}" stroke-width="3"/>'
        )
        parts.append(
            f'<text x="{left + 28}" y="48">{name} {result.percentile(share) * 1000:.0f} ms overall</text>'
        )
    parts.append(f'<rect x="{_LEFT + 460}" y="38" width="22" height="12" fill="#d9e6f2"/>')
    parts.append(f'<text x="{_LEFT + 488}" y="48">boots ended a second (right)</text>')
    return _page(title, parts)


def _bins(ended: Sequence[tuple[float, float]], width: float) -> list[list[float]]:
    count = max(4, min(60, len(ended) // 40))
    bins: list[list[float]] = [[] for _ in range(count)]
    for seconds, latency in ended:
        bins[min(int(seconds / width * count), count - 1)].append(latency)
    return bins


def _axes(width: float, height: float, busiest: float) -> list[str]:
    bottom, right = _TOP + _PLOT_HEIGHT, _LEFT + _PLOT_WIDTH
    parts = [f'<rect x="{_LEFT}" y="{_TOP}" width="{_PLOT_WIDTH}" height="{_PLOT_HEIGHT}" fill="#fbfbfb"/>']
    for tick in range(6):
        share = tick / 5
        level = bottom - share * _PLOT_HEIGHT
        across = _LEFT + share * _PLOT_WIDTH
        parts += [
            f'<line x1="{_LEFT}" x2="{right}" y1="{level}" y2="{level}" stroke="#ddd"/>',
            f'<text x="{_LEFT - 8}" y="{level + 4}" text-anchor="end">{share * height:.0f}</text>',
            f'<text x="{right + 8}" y="{level + 4}" fill="#6f8fb0">{share * busiest:.0f}</text>',
            f'<text x="{across}" y="{bottom + 18}" text-anchor="middle">{share * width:.1f}</text>',
        ]
    middle = _LEFT + _PLOT_WIDTH / 2
    parts += [
        f'<text x="{middle}" y="{bottom + 42}" text-anchor="middle">seconds since the load began</text>',
        f'<text transform="translate(18 {_TOP + _PLOT_HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
        "milliseconds from request to end, build included</text>",
    ]
    return parts


def _rounded_up(value: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten."""
    size = 1.0
    while size * 10 <= value:
        size *= 10
    return next((size * factor for factor in (1, 2, 5, 10) if size * factor >= value), size * 10)


def _page(title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="12">'
        '<rect width="100%" height="100%" fill="white"/>'
        f'<text x="{_LEFT}" y="26" font-size="16">{escape(title)}</text>' + "".join(parts) + "</svg>\n"
    )

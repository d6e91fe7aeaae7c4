"""Forecasts when the used capacity reaches a limit, by a robust linear trend with an interval.

The slope is the median of the slopes between all pairs of points (Theil and Sen), so that single peaks do not
change it. Its interval of 90 % is widened if consecutive points depend on each other. If the interval
contains 0, there is no trend.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

HOUR, DAY = 3600.0, 86400.0
LONG = 10 * DAY  # for samples over at least this period, a point is the median of a day, else of an hour
FEWEST = 12  # points
AHEAD = 3.0  # no date further ahead than this multiple of the observed period is forecast
SEASON = 0.5  # share of the variance that a pattern must explain
_Z = 1.645  # of a normal distribution: 90 % are closer to the mean
_MOST_DEPENDENT = 0.95

Floats = NDArray[np.float64]
Trend = Literal["too short", "no trend", "falling", "rising", "full"]


@dataclass(frozen=True, kw_only=True)
class CapacityForecast:
    """The trend of a used amount, and the times at which it reaches the limit."""

    trend: Trend
    limit: float  # the amount that can be used
    used: float = 0.0  # the present level by the trend
    a_day: float = 0.0  # change a day: expected, and the ends of its interval
    least_a_day: float = 0.0
    most_a_day: float = 0.0
    points: int = 0
    period: float = 0.0  # seconds between the first and the last sample
    expected: float | None = None  # time at which the limit is reached; None: not before `until`
    earliest: float | None = None
    latest: float | None = None
    until: float = 0.0  # the end of the time for which dates are given


def forecast(samples: Sequence[tuple[float, float]], limit: float) -> CapacityForecast:
    """Return when the used amount will reach a limit, by the trend of samples (time, used amount), the oldest
    first.
    """
    if not samples:
        return CapacityForecast(trend="too short", limit=limit)
    first, last = samples[0][0], samples[-1][0]
    span = DAY if last - first >= LONG else HOUR
    times, values = _medians(samples, span)
    period = last - first
    if len(times) < FEWEST:
        used = samples[-1][1]
        return CapacityForecast(
            trend="too short", limit=limit, used=used, points=len(times), period=period, until=last
        )
    days = (times - last) / DAY
    values = _without_season(days, values, 7 if span == DAY else 24, span)
    slope, least, most = _slopes(days, values)
    level = float(np.median(values - slope * days))
    until = last + AHEAD * period
    trend: Trend = "rising" if least > 0 else "falling" if most < 0 else "no trend"
    if level >= limit:
        trend = "full"

    def at(a_day: float) -> float | None:
        if trend != "rising" or a_day <= 0:
            return None
        present = float(np.median(values - a_day * days))  # the trend's level now
        reached = last + max(limit - present, 0.0) / a_day * DAY
        return reached if reached <= until else None

    return CapacityForecast(
        trend=trend, limit=limit, used=level, a_day=slope, least_a_day=least, most_a_day=most,
        points=len(times), period=period, expected=at(slope), earliest=at(most), latest=at(least),
        until=until,
    )  # fmt: skip


def _medians(samples: Sequence[tuple[float, float]], span: float) -> tuple[Floats, Floats]:
    """Return the mean times and the median values of the periods of `span` seconds (hours or days) that have
    samples.
    """
    array = np.array(samples, np.float64)
    bounds = np.flatnonzero(np.diff(np.floor(array[:, 0] / span))) + 1
    parts = np.split(array, bounds)
    return np.array([part[:, 0].mean() for part in parts]), np.array(
        [np.median(part[:, 1]) for part in parts]
    )


def _without_season(days: Floats, values: Floats, phases: int, span: float) -> Floats:
    """Return the values without their pattern over a day (24 `phases` of `span` seconds) or a week (7
    `phases`). Return the values unchanged if they cover less than three days (or weeks), or if the pattern
    explains less than half of their variance around the trend.
    """
    if len(values) < 3 * phases:
        return values
    slope, _, _ = _slopes(days, values)
    rest = values - slope * days
    phase = np.round(days * DAY / span).astype(np.int64) % phases
    season = np.zeros(phases)
    for each in range(phases):
        if (there := rest[phase == each]).size:
            season[each] = np.median(there)
    pattern = (season - np.mean(season))[phase]
    explains = np.var(rest - pattern) < (1 - SEASON) * np.var(rest)
    return values - pattern if explains else values


def _slopes(days: Floats, values: Floats) -> tuple[float, float, float]:
    """Return the median slope of all pairs of points, and the lower and upper end of its 90 % interval."""
    size = len(days)
    one, other = np.triu_indices(size, 1)
    slopes = np.sort((values[other] - values[one]) / (days[other] - days[one]))
    slope = float(np.median(slopes))
    rest = values - slope * days
    rest = rest - np.mean(rest)
    spread = float(np.dot(rest, rest))
    dependent = float(np.dot(rest[:-1], rest[1:])) / spread if spread > 0 else 0.0
    dependent = min(max(dependent, 0.0), _MOST_DEPENDENT)
    variance = size * (size - 1) * (2 * size + 5) / 18 * (1 + dependent) / (1 - dependent)
    width = _Z * np.sqrt(variance)
    low = max(int((len(slopes) - width) / 2), 0)
    high = min(int((len(slopes) + width) / 2) + 1, len(slopes) - 1)
    return slope, float(slopes[low]), float(slopes[high])

"""Forecasts of the used capacity: dates with an interval, seasons, peaks, and no trend without one."""

import math
import random
from collections.abc import Callable

import pytest

from features.capacity_history.trend import DAY, HOUR, forecast

BEGIN = 1_700_000_000.0 // DAY * DAY


def samples(days: float, value: Callable[[float], float], step: float = HOUR) -> list[tuple[float, float]]:
    count = int(days * DAY / step)
    return [(BEGIN + at * step, value(at * step / DAY)) for at in range(count)]


def test_the_date_of_a_steady_growth_is_exact_to_a_day() -> None:
    chance = random.Random(1)
    found = forecast(samples(30, lambda day: 1000 + 20 * day + chance.gauss(0, 15)), 2000)
    assert found.trend == "rising" and found.a_day == pytest.approx(20, rel=0.05)
    assert found.earliest and found.expected and found.latest
    assert found.earliest <= found.expected <= found.latest
    assert found.expected == pytest.approx(BEGIN + 50 * DAY, abs=2 * DAY)
    assert found.earliest <= BEGIN + 50 * DAY <= found.latest


def test_the_interval_contains_the_date_in_most_of_many_worlds() -> None:
    inside = 0
    for seed in range(60):
        chance, level = random.Random(seed), 0.0
        points = []
        for hour in range(24 * 8):
            level = 0.7 * level + chance.gauss(0, 8)  # consecutive values depend on each other
            points.append((BEGIN + hour * HOUR, 500 + 30 * hour / 24 + level))
        found = forecast(points, 1000)
        expected = BEGIN + 500 / 30 * DAY
        early = found.earliest is None or found.earliest <= expected
        late = found.latest is None or expected <= found.latest
        inside += found.trend == "rising" and early and late
    assert inside >= 48  # 90 % of 60 worlds, less three standard deviations


@pytest.mark.parametrize("days", [4, 30])
def test_days_and_weeks_are_no_trend(days: int) -> None:
    chance = random.Random(2)

    def value(day: float) -> float:
        week = 200 * math.sin(2 * math.pi * day / 7) if days > 7 else 0.0
        return 1000 + 300 * math.sin(2 * math.pi * day) + week + chance.gauss(0, 5)

    found = forecast(samples(days, value), 2000)
    assert found.trend == "no trend" and found.expected is None


def test_peaks_do_not_change_the_trend() -> None:
    chance = random.Random(3)
    found = forecast(samples(20, lambda day: 900 if 5 < day < 7 else 100 + chance.gauss(0, 3)), 1000)
    assert found.trend == "no trend" and found.used == pytest.approx(100, abs=5)


def test_no_date_is_given_far_beyond_the_observed_time() -> None:
    found = forecast(samples(12, lambda day: 100 + day), 10_000)
    assert found.trend == "rising" and found.expected is None
    assert found.until == pytest.approx(BEGIN + 48 * DAY, abs=DAY)


@pytest.mark.parametrize(
    ("hours", "used", "trend"), [(0, 1, "too short"), (11, 1, "too short"), (48, 2000, "full")]
)
def test_few_samples_and_a_full_cloud_have_no_date(hours: int, used: float, trend: str) -> None:
    found = forecast(samples(hours / 24, lambda day: used), 1000)
    assert (found.trend, found.expected) == (trend, None)


def test_a_falling_amount_reaches_no_limit() -> None:
    found = forecast(samples(20, lambda day: 1000 - 10 * day), 2000)
    assert found.trend == "falling" and found.expected is None

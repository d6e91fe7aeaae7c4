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


@pytest.mark.parametrize("days", [4, 30])
def test_days_and_weeks_are_no_trend(days: int) -> None:
    chance = random.Random(2)

    def value(day: float) -> float:
        week = 200 * math.sin(2 * math.pi * day / 7) if days > 7 else 0.0
        return 1000 + 300 * math.sin(2 * math.pi * day) + week + chance.gauss(0, 5)

    found = forecast(samples(days, value), 2000)
    assert found.trend == "no trend" and found.expected is None


@pytest.mark.parametrize(
    ("hours", "used", "trend"), [(0, 1, "too short"), (11, 1, "too short"), (48, 2000, "full")]
)
def test_few_samples_and_a_full_cloud_have_no_date(hours: int, used: float, trend: str) -> None:
    found = forecast(samples(hours / 24, lambda day: used), 1000)
    assert (found.trend, found.expected) == (trend, None)

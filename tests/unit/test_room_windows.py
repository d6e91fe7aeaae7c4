"""Recent events in the control room, counted per tick for at most ten minutes."""

import pytest

from control_room.core.latencies import bucket, percentiles
from control_room.core.windows import (
    MOST_CAUSES,
    OTHER,
    RECENT,
    TICK,
    TICKS,
    BuildHistory,
    EndedBuild,
    EndStatus,
    latest,
    summed,
    without_details,
)

BEGAN = 1000 * TICK


def an_end(at: float = BEGAN, status: EndStatus = "active", **more: object) -> EndedBuild:
    return EndedBuild(build="b", status=status, at=at, **more)  # type: ignore[arg-type]


def test_ends_are_counted_by_the_tick_and_the_one_under_way_is_left_out() -> None:
    lately = BuildHistory()
    for at in (0.0, 1.0, TICK, 2 * TICK):
        lately.add(an_end(BEGAN + at))
    ticks = lately.ticks(BEGAN + 2 * TICK + 1)
    assert len(ticks) == TICKS
    assert [tick.ends["active"] for tick in ticks[-3:]] == [0, 2, 1]
    assert lately.rate(BEGAN + 2 * TICK + 1) == 3 / (2 * TICK)


def test_what_is_older_than_the_window_is_forgotten() -> None:
    lately = BuildHistory()
    for number in range(3 * TICKS):
        lately.add(an_end(BEGAN + number * TICK, cause=f"c{number}"))
    assert summed(lately.ticks(BEGAN + 3 * TICKS * TICK)).ends["active"] == TICKS
    assert len(lately._ticks) <= TICKS + 1
    assert summed(lately.ticks(BEGAN + 9 * TICKS * TICK)).ends == {}


def test_a_clock_that_is_put_back_loses_nothing() -> None:
    lately = BuildHistory()
    for at in (0.0, 4 * TICK, 2 * TICK, -9 * TICK):
        lately.add(an_end(BEGAN + at))
    assert summed(lately.ticks(BEGAN + 5 * TICK)).ends["active"] == 4


def test_causes_beyond_a_number_count_together() -> None:
    lately = BuildHistory()
    for number in range(MOST_CAUSES + 5):
        lately.add(an_end(status="error", cause="x" * (number + 1)))
    causes = summed(lately.ticks(BEGAN + TICK)).causes
    assert (len(causes), causes[OTHER]) == (MOST_CAUSES + 1, 5)


def test_only_the_last_builds_are_known_by_name() -> None:
    lately = BuildHistory()
    for number in range(RECENT + 10):
        lately.add(an_end(status="error" if number % 2 else "active", attempts=1))
    assert len(lately.recent) == RECENT
    assert [end.status for end in latest(lately.recent, True, 3)] == ["error"] * 3
    assert len(list(latest(lately.recent, False, 10_000))) == RECENT


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("the disk is full", "the disk is full"),
        ("host h12 took 3.5 s", "host … took … s"),
        ("build 8c1f0a3e-7b2d-4e5f-9a6b-0c1d2e3f4a5b is gone", "build … is gone"),
        ("no image 'debian'", "no image …"),
    ],
)
def test_causes_are_alike_but_for_names_and_numbers(cause: str, kind: str) -> None:
    assert without_details(cause) == kind


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.0123, 0.5, 3.0, 250.0])
def test_a_percentile_is_off_by_no_more_than_a_tenth(seconds: float) -> None:
    (half,) = percentiles({bucket(seconds): 7}, (0.5,))
    assert half is not None
    assert seconds <= half <= max(0.001, seconds * 1.1001)


def test_percentiles_are_of_all_that_were_counted() -> None:
    counts = {bucket(0.01): 90, bucket(1.0): 9, bucket(60.0): 1}
    low, high, most = (round(value or 0, 1) for value in percentiles(counts, (0.5, 0.95, 1.0)))
    assert low == 0.0
    assert 1.0 <= high <= 1.1
    assert 60 <= most <= 66
    assert percentiles({}, (0.5,)) == [None]
    assert percentiles({bucket(1e9): 1}, (0.5,)) != [None]

"""Estimates when new requests are evaluated: their values, and calibration in virtual time."""

import random
from collections import Counter

import pytest

from features.waiting.core.calibration import P90, StartEstimate
from features.waiting.core.start_times import NewCounts, StartTimes, new_kind
from features.waiting.tests.support.backlog_load import BACKLOGS, ServedBacklog

KIND = new_kind("p")


def many() -> NewCounts:
    return NewCounts(Counter({0: 100_000}))


def served(times: StartTimes, counts: NewCounts, each: int, seconds: int, since: int = 0) -> None:
    """Evaluate this number of requests of project p each second, and measure."""
    for now in range(since, since + seconds + 1):
        times.measure({"p": counts}, {}, float(now))
        for _ in range(each):
            counts.on_done(0)


def after(times: StartTimes, before: int, now: float) -> StartEstimate:
    found = times.estimate(KIND, 0, before + 1 + times.histories[KIND].unstored, now)
    assert found is not None and found.p50 < found.p90
    return found


def test_requests_that_are_only_in_memory_precede_stored_requests() -> None:
    times, counts = StartTimes(), many()
    served(times, counts, 10, 60)
    assert after(times, 0, 60.0).p50 < 2.0
    times.measure({"p": counts}, {"p": 1000}, 61.0)
    assert after(times, 0, 61.0).p50 == pytest.approx(100.0, rel=0.3)


def test_time_without_new_requests_does_not_count() -> None:
    times, counts = StartTimes(), many()
    served(times, counts, 10, 60)
    before = after(times, 500, 60.0)
    times.measure({}, {}, 61.0)
    served(times, many(), 10, 10, since=10_001)
    assert after(times, 500, 10_012.0).p50 == pytest.approx(before.p50, rel=0.1)


def test_requests_that_are_not_evaluated_before_their_p90_count_as_late() -> None:
    times, counts = StartTimes(), many()
    served(times, counts, 100, 60)
    known = times.histories[KIND].corrections[0].p90
    for now in range(62, 10_000, 100):  # nothing is served any more
        times.measure({"p": counts}, {}, float(now))
    assert times.evaluations.error(P90) < 0.0 and times.histories[KIND].corrections[0].p90 > known


def replayed(name: str, seed: int) -> ServedBacklog:
    backlog = BACKLOGS[name](random.Random(seed))
    waits = backlog.waits
    print(
        f"{name}, seed {seed}: {len(waits)} waits, {backlog.unknown} unknown,"
        f" {in_time(backlog):.1%} before p90,"
        f" p90 ÷ p50 {sorted(given.p90 / given.p50 for _, given in waits)[len(waits) // 2]:.2f}"
    )
    return backlog


def in_time(*backlogs: ServedBacklog) -> float:
    waits = [wait for backlog in backlogs for wait in backlog.waits]
    return sum(wait <= given.p90 for wait, given in waits) / len(waits)


@pytest.mark.soak
def test_nine_of_ten_requests_of_a_backlog_are_evaluated_before_their_p90() -> None:
    """Served by the real fair queue, at a pace that changes, from the first request on."""
    backlogs = [replayed(name, seed=1) for name in BACKLOGS]
    assert sum(len(backlog.waits) for backlog in backlogs) >= 5_000
    assert all(backlog.unknown < 0.15 * len(backlog.waits) for backlog in backlogs)
    assert 0.85 <= in_time(*backlogs) <= 0.96


@pytest.mark.soak
@pytest.mark.parametrize("name", BACKLOGS)
def test_nine_of_ten_requests_are_evaluated_before_their_p90_in_each_pattern(name: str) -> None:
    backlogs = [replayed(name, seed) for seed in range(1, 13)]
    assert 0.85 <= in_time(*backlogs) <= 1.0

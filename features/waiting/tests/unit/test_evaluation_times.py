"""Estimates when new requests are evaluated: their values, and calibration in virtual time."""

import random
from collections import Counter

import msgspec
import pytest

from bus.clock import Clock
from features.waiting.core.calibration import P90, StartEstimate
from features.waiting.core.start_times import NewCounts, StartTimes, new_kind
from features.waiting.start_estimates import StartEstimates
from features.waiting.tables.queued import OtherScheduler
from features.waiting.tests.support.backlog_load import BACKLOGS, ServedBacklog

KIND = new_kind("p")


def many() -> NewCounts:
    return NewCounts(Counter({0: 100_000}))


def served(
    times: StartTimes, counts: NewCounts, each: int, seconds: int, since: int = 0, every: int = 1
) -> None:
    """Evaluate this number of requests of project p each second, `every` so many seconds, and measure."""
    for now in range(since, since + seconds + 1):
        times.measure({"p": counts}, {}, float(now))
        for _ in range(each * every if now % every == 0 else 0):
            counts.on_done(0)


def after(times: StartTimes, before: int, now: float) -> StartEstimate:
    found = times.estimate(KIND, 0, before + 1 + times.histories[KIND].unstored, now)
    assert found is not None and found.p50 < found.p90
    return found


def test_the_evaluation_of_a_request_follows_the_pace_and_the_requests_before_it() -> None:
    for each in (10, 100):
        times, counts = StartTimes(), many()
        times.measure({"p": counts}, {}, 0.0)
        assert times.estimate(KIND, 0, 1, 0.0) is None  # unknown
        served(times, counts, each, 60)
        # No estimate has been compared yet. The pace is known for a minute, and may change after it.
        for seconds, latest in ((20, 4), (200, 10)):
            found = after(times, seconds * each, 60.0)
            assert 0.7 < found.p50 / seconds < 1.3
            assert found.p90 < latest * seconds


def test_requests_that_are_evaluated_in_large_batches_have_a_later_p90() -> None:
    found = []
    for every in (1, 5):
        times = StartTimes()
        served(times, many(), 100, 60, every=every)
        found.append(after(times, 1000, 60.0))
    even, uneven = found
    assert uneven.p50 == pytest.approx(even.p50, rel=0.3)
    assert uneven.p90 / uneven.p50 > 1.2 * even.p90 / even.p50


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
    times.evaluations.take_compared()
    known = times.histories[KIND].corrections[0].p90
    for now in range(62, 10_000, 100):  # nothing is served any more
        times.measure({"p": counts}, {}, float(now))
    assert times.evaluations.take_compared() > 0
    assert times.evaluations.error(P90) < 0.0 and times.histories[KIND].corrections[0].p90 > known


def test_any_scheduler_estimates_from_the_stored_history_and_a_successor_adopts_it() -> None:
    times = StartTimes()
    served(times, many(), 100, 60)
    text = msgspec.json.encode(times.stored(60.0)).decode()
    roster = [OtherScheduler("s1", 1, "{}", 0, starts=text), OtherScheduler("s2", 1, "{}", 0)]
    estimates = StartEstimates(Clock(now=lambda: 5000.0))

    def first(**before: int) -> float:
        start = estimates.expected_evaluation("p", 0, before, roster)
        assert start is not None and start[0] < start[1]
        return start[0] - 5000.0

    assert first(s1=10_000) == pytest.approx(100.0, rel=0.2)
    assert first(s1=10, s2=10_000) == pytest.approx(100.0, rel=0.2)  # s2 has no history of its own
    assert estimates.expected_evaluation("q", 0, {"s1": 10}, roster) is None
    estimates.adopt([text])
    assert after(estimates.times, 10_000, 0.0).p50 == pytest.approx(100.0, rel=0.2)


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

"""Estimates when requests of the backlog are evaluated: their values, and calibration in virtual time."""

import random
from collections import Counter

import msgspec
import pytest

from features.waiting.core.backlog_paces import BacklogCounts, BacklogPace, BacklogPaces
from features.waiting.core.calibration import P90
from features.waiting.start_estimates import expected_evaluation
from features.waiting.tables.queued import OtherScheduler
from features.waiting.tests.support.backlog_load import BACKLOGS, ServedBacklog


def served(paces: BacklogPaces, counts: BacklogCounts, each: int, seconds: int, since: int = 0) -> None:
    """Serve this number of requests of project p each second, and measure."""
    for now in range(since, since + seconds + 1):
        paces.measure({"p": counts}, {}, float(now))
        counts.taken += each
        for _ in range(each):
            counts.on_done(0)


def test_the_evaluation_of_a_request_follows_the_pace_and_the_requests_before_it() -> None:
    for each in (10, 100):
        paces = BacklogPaces()
        counts = BacklogCounts(Counter({0: 100_000}))
        paces.measure({"p": counts}, {}, 0.0)
        assert not paces.paces  # unknown
        served(paces, counts, each, 60)
        for before in (20 * each, 200 * each):
            found = paces.paces["p"].estimate(0, before)
            assert found is not None
            assert 0.7 < found.p50 / (before / each) < 1.3
            assert found.p50 < found.p90 < 6 * before / each


def test_a_pace_that_varies_more_has_a_later_p90() -> None:
    even, uneven = BacklogPace(), BacklogPace()
    for second in range(60):
        even.add(100, 1.0)
        uneven.add(500 if second % 5 == 0 else 0, 1.0)
    after_even, after_uneven = even.estimate(0, 1000), uneven.estimate(0, 1000)
    assert after_even is not None and after_uneven is not None
    assert after_uneven.p50 == pytest.approx(after_even.p50, rel=0.3)
    assert after_uneven.p90 / after_uneven.p50 > 1.2 * after_even.p90 / after_even.p50


def test_requests_that_are_only_in_memory_precede_stored_requests() -> None:
    paces, counts = BacklogPaces(), BacklogCounts(Counter({0: 100_000}))
    served(paces, counts, 10, 60)
    without = paces.paces["p"].estimate(0, 0)
    paces.measure({"p": counts}, {"p": 1000}, 61.0)
    behind = paces.paces["p"].estimate(0, 0)
    assert without is not None and behind is not None
    assert without.p50 < 2.0 and behind.p50 == pytest.approx(100.0, rel=0.3)


def test_time_without_a_backlog_does_not_count() -> None:
    paces, counts = BacklogPaces(), BacklogCounts(Counter({0: 100_000}))
    served(paces, counts, 10, 60)
    before = paces.paces["p"].estimate(0, 500)
    paces.measure({}, {}, 61.0)
    counts = BacklogCounts(Counter({0: 100_000}))
    paces.measure({"p": counts}, {}, 10_000.0)
    served(paces, counts, 10, 10, since=10_001)
    after = paces.paces["p"].estimate(0, 500)
    assert before is not None and after is not None
    assert after.p50 == pytest.approx(before.p50, rel=0.1)


def test_requests_that_are_not_evaluated_before_their_p90_count_as_late() -> None:
    paces, counts = BacklogPaces(), BacklogCounts(Counter({0: 100_000}))
    served(paces, counts, 100, 60)
    paces.calibration.take_compared()
    known = paces.paces["p"].corrections[0].p90
    for now in range(62, 10_000, 100):  # nothing is served any more
        paces.measure({"p": counts}, {}, float(now))
    assert paces.calibration.take_compared() > 0
    assert paces.calibration.error(P90) < 0.0 and paces.paces["p"].corrections[0].p90 > known


def test_any_scheduler_estimates_from_the_stored_paces_and_a_successor_adopts_them() -> None:
    paces, counts = BacklogPaces(), BacklogCounts(Counter({0: 100_000}))
    served(paces, counts, 100, 60)
    stored = paces.measure({"p": counts}, {}, 61.0)
    text = msgspec.json.encode(stored).decode()
    roster = [OtherScheduler("s1", 1, "{}", 0, paces=text), OtherScheduler("s2", 1, "{}", 0)]

    def after(**before: int) -> float:
        start = expected_evaluation("p", 0, before, roster, 5000.0)
        assert start is not None and start[0] < start[1]
        return start[0] - 5000.0

    assert after(s1=10_000) == pytest.approx(100.0, rel=0.2)
    assert after(s1=10, s2=10_000) == pytest.approx(100.0, rel=0.2)  # s2 has no pace of its own
    assert expected_evaluation("q", 0, {"s1": 10}, roster, 5000.0) is None
    successor = BacklogPaces()
    successor.adopt(stored)
    assert successor.paces["p"].estimate(0, 10_000) == stored["p"].estimate(0, 10_000)


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

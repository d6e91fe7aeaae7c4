"""Estimates of the start times of waiting requests: their values, and their calibration in virtual time."""

import random
from collections import Counter

import pytest

from features.waiting.core.start_times import MOST_CLASSES, NewCounts, StartTimes, new_kind
from features.waiting.tests.support.compared_waits import ComparedWaits
from features.waiting.tests.support.waiting_load import PATTERNS, LoadedCloud


def paced(times: StartTimes, kind: str, every: float, starts: int = 100, lacks: str = "VCPU") -> float:
    """Let a request of a class start at equal distances, while one more waits; return the time."""
    times.enter(f"{kind} 0", kind, lacks, 0, 1, 0.0)
    for number in range(1, starts + 1):
        now = number * every
        times.enter(f"{kind} {number}", kind, lacks, 0, 2, now)
        times.leave(f"{kind} {number - 1}", now, started=True)
    return starts * every


def test_the_start_follows_the_pace_and_the_position() -> None:
    for every in (1.0, 60.0):
        times = StartTimes()
        now = paced(times, "small", every)
        for position in (10, 100, 1000):
            found = times.estimate("small", 0, position, now)
            assert found is not None
            assert 0.5 * position * every < found.p50 < 1.2 * position * every
            assert found.p50 < found.p90 < 8 * position * every


def test_a_queue_that_stands_still_starts_later() -> None:
    times = StartTimes()
    now = paced(times, "small", 60.0)
    before, after = (times.estimate("small", 0, 1, at) for at in (now, now + 7200.0))
    assert before is not None and after is not None
    assert after.p50 > 3 * before.p50


def test_a_class_without_history_uses_classes_that_lack_the_same_resources() -> None:
    times = StartTimes()
    now = paced(times, "small", 60.0)
    for kind, lacks in (("medium", "VCPU"), ("node", "CUSTOM_BAREMETAL")):
        times.enter(kind, kind, lacks, 0, 1, now)
    related = times.estimate("medium", 0, 1, now)
    assert related is not None and 10.0 < related.p50 < 120.0 < related.p90
    assert times.estimate("node", 0, 1, now) is None


def test_only_recent_classes_are_remembered_and_waiting_ones_always() -> None:
    times = StartTimes()
    times.enter("first", "first", "VCPU", 0, 1, 0.0)
    for number in range(2 * MOST_CLASSES):
        times.enter(f"r{number}", f"k{number}", "VCPU", 0, 1, 0.0)
        times.leave(f"r{number}", 1.0, started=True)
    assert len(times.histories) == MOST_CLASSES
    assert {"first", f"k{2 * MOST_CLASSES - 1}"} <= times.histories.keys()


def test_projects_whose_new_requests_are_all_handled_are_measured_among_many_classes() -> None:
    times, new = (
        StartTimes(),
        {f"p{number}": NewCounts(Counter({0: 10})) for number in range(MOST_CLASSES + 8)},
    )
    times.measure(new, {}, 0.0)
    for _ in range(10):
        new["p0"].on_done(0)
    for now in (1.0, 2.0):
        times.measure(new, {}, now)
    assert times.histories[new_kind("p0")].advances[-1] > 0.0
    times.measure({}, {}, 3.0)
    assert len(times.histories) == MOST_CLASSES


def replayed(name: str, waits: int, seed: int) -> ComparedWaits:
    pattern, kinds = PATTERNS[name]
    compared = ComparedWaits()
    LoadedCloud(kinds, compared).run(pattern(random.Random(seed)), waits)
    compared.finish()
    print(
        f"{name}, seed {seed}: {len(compared.waits)} waits, {compared.unknown} unknown,"
        f" {compared.before_p50:.1%} before p50, {compared.before_p90:.1%} before p90,"
        f" p90 ÷ p50 {compared.width:.2f}"
    )
    return compared


@pytest.mark.soak
@pytest.mark.parametrize("name", PATTERNS)
def test_nine_of_ten_waits_start_before_their_p90_in_each_pattern_of_load(name: str) -> None:
    found = [replayed(name, 10_000, seed) for seed in range(1, 7)]  # a seed has only 25 bursts
    waits = [wait for compared in found for wait in compared.waits]
    assert 0.87 <= sum(wait <= given.p90 for wait, given in waits) / len(waits) <= 0.93
    assert 0.42 <= sum(wait <= given.p50 for wait, given in waits) / len(waits) <= 0.58

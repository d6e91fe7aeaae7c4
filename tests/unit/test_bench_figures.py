"""Comparison of benchmark results with a previous run: ratios, normalization, regressions."""

from collections.abc import Sequence

import pytest

from bench.figures import BenchRun, Better, Figure, MachineFacts, Measured, Yardstick, compared, rows

MACHINE = MachineFacts(processor="one", cores=2, load=0.0, python="3", rabbitmq="3", postgresql="15")


def a_run(
    figures: Sequence[Figure], clock: float = 100.0, processor: float = 100.0, name: str = "b"
) -> BenchRun:
    measured = Measured(tuple(figures), Yardstick(clock, processor), 1.0)
    return BenchRun(at="then", commit="c", long=False, machine=MACHINE, benches={name: measured})


@pytest.mark.parametrize(
    ("better", "was", "now", "ratio", "worse"),
    [
        ("up", 100.0, 200.0, 2.0, False),
        ("up", 100.0, 91.0, 0.91, False),
        ("up", 100.0, 89.0, 0.89, True),
        ("down", 100.0, 50.0, 2.0, False),
        ("down", 100.0, 109.0, 100 / 109, False),
        ("down", 100.0, 111.0, 100 / 111, True),
    ],
)
def test_a_ratio_says_how_many_times_as_good(
    better: Better, was: float, now: float, ratio: float, worse: bool
) -> None:
    (one,) = compared(a_run([Figure("f", now, "", better)]), a_run([Figure("f", was, "", better)]))
    assert one.ratio == pytest.approx(ratio)
    assert one.was == was
    assert one.worse is worse


@pytest.mark.parametrize(
    ("figure", "slower"),
    [
        (Figure("boots/s", 50.0, "/s", "up"), Yardstick(clock=50.0, processor=100.0)),
        (Figure("p99", 200.0, "ms", "down"), Yardstick(clock=50.0, processor=100.0)),
        (Figure("a boot", 200.0, "ms", "down", "processor"), Yardstick(clock=100.0, processor=50.0)),
        (Figure("decisions", 50.0, "/s", "up", "processor"), Yardstick(clock=100.0, processor=50.0)),
        (Figure("memory", 100.0, "MB", "down", ""), Yardstick(clock=50.0, processor=50.0)),
    ],
    ids=lambda one: one.name if isinstance(one, Figure) else "",
)
def test_a_machine_of_half_the_speed_is_no_regression(figure: Figure, slower: Yardstick) -> None:
    before = a_run([Figure(figure.name, 100.0, figure.unit, figure.better, figure.scales)])
    (one,) = compared(a_run([figure], slower.clock, slower.processor), before)
    assert one.ratio == pytest.approx(1.0)
    assert not one.worse


def test_a_new_benchmark_has_no_ratio() -> None:
    was, now = Figure("known", 1.0, "s", "down"), Figure("other", 1.0, "s", "down")
    assert [(one.was, one.ratio) for one in compared(a_run([was, now]), a_run([was]))] == [
        (1.0, 1.0),
        (None, None),
    ]
    assert compared(a_run([was]), None)[0].ratio is None
    assert compared(a_run([was]), a_run([was], name="another"))[0].ratio is None


def test_the_table_has_ratios_first_and_marks_what_is_worse() -> None:
    before = a_run([Figure("boots/s", 1000.0, "/s", "up"), Figure("p99", 40.0, "ms", "down")])
    now = [
        Figure("boots/s", 2000.0, "/s", "up"),
        Figure("p99", 80.0, "ms", "down"),
        Figure("fresh", 1.5, "", "up"),
    ]
    assert rows(compared(a_run(now), before)) == [
        ("b", "boots/s", "2.00 ×", "2,000 /s", "1,000 /s", ""),
        ("", "p99", "0.50 ×", "80 ms", "40 ms", "WORSE"),
        ("", "fresh", "new", "1.50", "", ""),
    ]

"""The comparison of this checkout with earlier commits: what is read, and when it fails."""

import pytest

from bench.beside import HERE, BootCost, ComparedLoad, cost_in, ratio, table

PRINTED = """yardstick: 3,820 confirmed publishes/s, 43,051 inserted rows/s
 boots/s  p50 ms  p99 ms  CPU ms/boot  of which
     473    3821    5207         3.77  PostgreSQL 0.79, conductor 0.76; the load: 0.10
"""
COSTS = {
    "39c55bef": [BootCost(500, 20, 50, cost) for cost in (2.0, 2.2, 9.0)],
    HERE: [BootCost(400, 30, 60, cost) for cost in (2.2, 2.4, 2.42)],
}


def test_the_cost_is_read_from_what_the_benchmark_prints() -> None:
    assert cost_in(PRINTED) == BootCost(473, 3821, 5207, 3.77)


def test_a_run_without_a_result_is_shown() -> None:
    with pytest.raises(SystemExit, match="no broker"):
        cost_in("no broker")


def test_medians_are_compared_so_that_one_disturbed_round_does_not_decide() -> None:
    assert ratio(COSTS, HERE, "39c55bef") == pytest.approx(2.4 / 2.2)


def test_the_table_has_a_row_for_each_checkout() -> None:
    lines = table(ComparedLoad(20, 0.0), COSTS, "39c55bef").splitlines()
    assert lines[0].startswith("| 20 flavors, as fast as possible |")
    assert lines[2:] == [
        "| 39c55bef | 500 | 20 | 50 | 2.20 | 1.00 |",
        f"| {HERE} | 400 | 30 | 60 | 2.40 | 1.09 |",
    ]

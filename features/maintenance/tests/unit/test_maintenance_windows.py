"""When the hosts of a maintenance window are closed, within budgets, and which are reported as late."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from features.maintenance.core.maintenance import (
    UNMEASURED,
    DrainedHost,
    MeasuredMove,
    WindowPlanner,
    after_the_window,
    drain_seconds,
    move_seconds,
)
from features.maintenance.messages import HostPhase, MaintenanceWindow
from tests.support.ids import uid

BEGINS, ENDS = 10_000.0, 20_000.0
TEN_SECONDS = [MeasuredMove(1000, 10.0)]


def a_window(hosts: int, **changed: object) -> MaintenanceWindow:
    roots = tuple(uid(number, "a") for number in range(1, hosts + 1))
    fields = {"id": uid(1), "roots": roots, "begins": BEGINS, "ends": ENDS, "moves": 1} | changed
    return MaintenanceWindow(**fields)  # type: ignore[arg-type]


def a_host(
    number: int, domain: str = "r1", phase: HostPhase = "planned", instances: int = 10, since: float = 0.0,
    stuck: int = 0,
) -> DrainedHost:  # fmt: skip
    return DrainedHost(uid(number, "a"), phase, since, domain, [1000] * instances, stuck)


def a_planner(
    *hosts: DrainedHost, lead: float = 50.0, unavailable: Mapping[str, Sequence[str]] | None = None,
    **changed: object,
) -> WindowPlanner:  # fmt: skip
    return WindowPlanner(a_window(len(hosts), **changed), hosts, TEN_SECONDS, lead, unavailable or {})


def names(*numbers: int) -> list[str]:
    return [uid(number, "a") for number in numbers]


@pytest.mark.parametrize(
    ("memory_mb", "measured", "seconds"),
    [
        (4000, [], UNMEASURED),
        (1000, [(1000, 10.0)], 10.0),
        (4000, [(1000, 10.0)], 40.0),  # four times the size
        (500, [(1000, 10.0)], 10.0),  # never faster than measured
        (1000, [(1000, float(second)) for second in range(1, 11)], 10.0),  # p90
        (0, [(0, 7.0)], 7.0),
    ],
)
def test_a_move_is_expected_to_last_as_long_as_measured_moves_of_its_size(
    memory_mb: int, measured: Sequence[tuple[int, float]], seconds: float
) -> None:
    assert move_seconds(memory_mb, [MeasuredMove(*past) for past in measured]) == seconds


def test_a_drain_lasts_as_long_as_its_moves_side_by_side_and_at_least_as_the_longest() -> None:
    assert drain_seconds([1000] * 10, TEN_SECONDS, at_once=2) == 50.0
    assert drain_seconds([1000, 8000], TEN_SECONDS, at_once=4) == 80.0
    assert drain_seconds([], TEN_SECONDS, at_once=4) == 0.0


def test_hosts_are_closed_so_early_that_the_drain_ends_before_the_window() -> None:
    planner = a_planner(a_host(1), a_host(2))  # 20 moves of 10 s, and half as much again
    assert planner.drain_begins() == BEGINS - 300.0
    assert planner.to_close(BEGINS - 301) == []
    assert planner.to_close(BEGINS - 300) == names(1, 2)


def test_hosts_are_closed_at_least_the_lead_before_the_window() -> None:
    assert a_planner(a_host(1, instances=0), lead=600.0).to_close(BEGINS - 600) == names(1)


def test_no_host_is_closed_after_the_window() -> None:
    assert a_planner(a_host(1)).to_close(ENDS) == []


def test_the_budget_limits_the_unavailable_hosts_of_each_domain() -> None:
    hosts = [a_host(1, "r1"), a_host(2, "r1"), a_host(3, "r2"), a_host(4, "r2")]
    assert a_planner(*hosts, budget=1).to_close(BEGINS) == names(1, 3)
    assert a_planner(*hosts, budget=0).to_close(BEGINS) == names(1, 2, 3, 4)
    down = {"r1": names(9)}  # another host of the rack
    assert a_planner(*hosts, budget=1, unavailable=down).to_close(BEGINS) == names(3)
    same = {"r1": names(1)}  # a planned host that is down takes no more of the budget than alone
    assert a_planner(*hosts, budget=1, unavailable=same).to_close(BEGINS) == names(1, 3)


def test_a_host_that_cannot_be_empty_in_time_is_late_before_the_window_begins() -> None:
    host = a_host(1, phase="draining", since=BEGINS - 300)
    assert a_planner(host).late(BEGINS - 100) == {}
    assert "about 100 s are needed, and 99 s are left" in a_planner(host).late(BEGINS - 99)[host.root]
    assert "still there" in a_planner(host).late(BEGINS)[host.root]


def test_a_host_whose_instance_cannot_be_moved_is_late_immediately() -> None:
    host = a_host(1, phase="draining", since=BEGINS - 300, stuck=1)
    assert "1 of 10" in a_planner(host).late(BEGINS - 290)[host.root]


def test_a_host_with_an_instance_that_would_find_no_host_is_late_before_its_drain_begins() -> None:
    stays = {uid(2): "[room] no host would do", uid(1): "[status] it is being deleted"}
    host = replace(a_host(1, instances=3), without_host=stays)
    said = f"2 of 3 instances would find no host now, such as {uid(1)}: [status] it is being deleted"
    assert a_planner(host, a_host(2)).late(BEGINS - 1000) == {host.root: said}


def test_a_host_that_waits_for_the_budget_is_late_if_its_drain_would_not_end_in_the_window() -> None:
    hosts = a_host(1, phase="empty", instances=0), a_host(2)
    planner = a_planner(*hosts, budget=1, unavailable={"r1": names(1)})
    assert planner.late(BEGINS + 1) == {}
    assert "budget" in planner.late(ENDS - 99)[uid(2, "a")]


def test_a_host_whose_drain_has_not_begun_is_late_if_the_drain_would_end_after_the_window_begins() -> None:
    planner = a_planner(a_host(1), a_host(2))  # 20 moves of 10 s
    assert planner.late(BEGINS - 200) == {}
    why = "about 200 s are needed, and 199 s are left"
    assert planner.late(BEGINS - 199) == dict.fromkeys(names(1, 2), why)


def test_a_host_that_waits_for_the_budget_is_late_from_the_start_if_its_drain_is_longer_than_the_window() -> (
    None
):
    planner = a_planner(a_host(1), a_host(2, instances=1001), budget=1)
    assert "would not end in the window" in planner.late(0.0)[uid(2, "a")]


def test_the_time_at_which_the_first_hosts_are_empty_is_estimated_from_the_begin_of_their_drain() -> None:
    planner = a_planner(a_host(1), a_host(2))
    assert planner.empty_at(0.0) == BEGINS - 300.0 + 200.0
    assert planner.empty_at(BEGINS - 100.0) == BEGINS + 100.0
    draining = a_planner(a_host(1, phase="draining", instances=3, since=BEGINS - 300))
    assert draining.empty_at(BEGINS - 250.0) == BEGINS - 220.0
    assert a_planner(a_host(1, phase="empty", instances=0)).empty_at(0.0) == 0.0  # nothing to estimate


def test_hosts_are_opened_after_the_window_unless_they_are_to_stay_closed() -> None:
    assert after_the_window(a_window(1), "empty") == "ended"
    assert after_the_window(a_window(1, keep_closed=True), "draining") == "kept"
    assert after_the_window(a_window(1, keep_closed=True), "planned") == "ended"
    assert after_the_window(a_window(1), "opened") == "opened"

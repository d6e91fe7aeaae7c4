"""Orders that come to an agent twice, late, or after a destroy do no harm."""

import pytest
from msgspec.structs import replace

from bus.agent_builds import AgentBuilds, report
from tests.support.conductor_builders import a_build_order, a_destroy_order, a_placed
from tests.support.ids import uid

PLACED = a_placed(1)
FIRST, SECOND = a_build_order(PLACED, 1), a_build_order(PLACED, 2)


def test_a_repeated_order_returns_its_outcome() -> None:
    builds = AgentBuilds()
    assert [builds.ordered(FIRST), builds.ordered(FIRST)] == ["start", "running"]
    built = report(FIRST, "built")
    builds.finished(built)
    assert builds.ordered(FIRST) is built
    assert builds.ordered(SECOND) == "start"


def test_an_order_at_or_below_a_destroyed_attempt_is_void() -> None:
    builds = AgentBuilds()
    assert builds.ordered(FIRST) == "start"
    assert builds.destroyed(a_destroy_order(PLACED, 2)) == report(SECOND, "destroyed")
    assert builds.running == set()
    assert builds.ordered(FIRST) == report(FIRST, "destroyed")
    assert builds.ordered(SECOND) == report(SECOND, "destroyed")
    assert builds.ordered(a_build_order(PLACED, 3)) == "start"


def test_an_agent_forgets_the_destroyed_builds_of_an_earlier_time() -> None:
    seconds = [0.0]
    builds = AgentBuilds(seconds=60.0, now=lambda: seconds[0])
    for number, at in enumerate((0.0, 30.0, 61.0)):
        seconds[0] = at
        builds.void(uid(number, "b"), 1)
    assert [builds.is_void(uid(number, "b"), 1) for number in range(3)] == [False, True, True]


def test_a_report_names_the_host_of_the_order() -> None:
    assert report(FIRST, "failed", retry=False, cause="x") == replace(
        report(FIRST, "built"), outcome="failed", retry=False, cause="x"
    )


@pytest.mark.parametrize(
    ("destroyed", "void", "alive"),
    [
        ([(3, 0)], {1, 2, 3}, {4}),
        ([(3, 2)], {3}, {1, 2, 4}),  # the build goes back to what is there
        ([(1, 0), (3, 2)], {1, 3}, {2, 4}),
        ([(3, 2), (4, 2), (3, 2)], {3, 4}, {1, 2, 5}),
        ([(3, 2), (5, 4), (2, 1)], {2, 3, 5}, {1, 4, 6}),
        ([(3, 2), (2, 0)], {1, 2, 3}, {4}),
        ([(2, 5)], set(), {1, 2, 5}),  # nothing is named
    ],
)
def test_attempts_that_stay_are_not_void(
    destroyed: list[tuple[int, int]], void: set[int], alive: set[int]
) -> None:
    builds = AgentBuilds()
    orders = {attempt: replace(FIRST, attempt=attempt) for attempt in range(1, 7)}
    for order in orders.values():
        builds.ordered(order)
        if order.attempt % 2:
            builds.finished(report(order, "built"))
    for attempt, above in destroyed:
        builds.destroyed(replace(a_destroy_order(PLACED, 1), attempt=attempt, above=above))
    for attempt in void:
        assert builds.ordered(orders[attempt]) == report(orders[attempt], "destroyed")
    for attempt in alive:
        known = report(orders[attempt], "built") if attempt % 2 else "running"
        assert builds.ordered(orders[attempt]) == known

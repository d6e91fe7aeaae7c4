"""Waiting requests that are problems: without progress, or with a start after their time limit."""

from typing import Any

import pytest

from bus.problems import KnownProblem
from bus.queries import WaitingRequest
from features.waiting.problems import overdue
from tests.support.ids import uid

NOW = 1_800_000_000.0
HOUR = 3600.0


def a_wait(number: int, hours: float = 1.0, **fields: Any) -> WaitingRequest:
    """Return a request that has waited for so many hours, of a queue without recent progress."""
    given: dict[str, Any] = {
        "request": uid(number), "instances": 1, "project": "p", "flavor": "big", "priority": 0,
        "since": NOW - hours * HOUR, "until": NOW + HOUR, "kind": "k", "position": 1,
        "lacks": "no room. closest h1 (asked 2, free 1)",
    }  # fmt: skip
    return WaitingRequest(**given | fields)


def found(*waiting: WaitingRequest) -> list[KnownProblem]:
    return overdue(waiting, NOW, starving_after=600.0)


@pytest.mark.parametrize(
    "waiting",
    [
        a_wait(1, hours=0.1),
        a_wait(1, start_p50=NOW + 60.0, start_p90=NOW + HOUR),  # the queue makes progress
    ],
)
def test_a_request_that_is_served_in_time_is_no_problem(waiting: WaitingRequest) -> None:
    assert found(waiting) == []


def test_requests_of_one_queue_that_starve_are_one_problem() -> None:
    [problem] = found(a_wait(1), a_wait(2, hours=2.0), a_wait(3, hours=0.0))
    assert (problem.kind, problem.object, problem.since) == ("request-starves", "2 requests", NOW - 2 * HOUR)
    assert problem.says == "Waiting without progress: 2 requests of flavor big; no room."
    assert f"`berth why {uid(2)}`" in problem.do


def test_requests_that_lack_something_else_are_another_problem() -> None:
    assert len(found(a_wait(1), a_wait(2, kind="other"))) == 2


def test_a_request_whose_start_is_expected_after_its_limit_will_expire() -> None:
    [problem] = found(a_wait(1, hours=0.0, start_p50=NOW + 2 * HOUR, start_p90=NOW + 3 * HOUR))
    assert problem.kind == "request-expires"

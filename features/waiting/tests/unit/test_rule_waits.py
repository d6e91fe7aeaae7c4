"""Waiting requests that a rule refused: which are tried again, and when."""

import pytest

from bus.context import NO_CONTEXT
from bus.decisions import Decision
from features.waiting.core.rule_waits import RuleWaits
from features.waiting.tests.support.waiting_stores import waiting_store_of
from tests.support.scheduler_builders import FakePlacement, a_candidate, a_request
from tests.support.schedulers import scheduler_of


def held(*requests: tuple[str, str, str]) -> RuleWaits:
    waits = RuleWaits()
    for since, (request, project, kind) in enumerate(requests):
        waits.hold((0, float(since), request), project, kind, f"quota:{project}")
    return waits


def test_a_wake_releases_the_first_request_of_each_class_of_the_project() -> None:
    waits = held(("a", "p1", "small"), ("b", "p1", "small"), ("c", "p1", "large"), ("d", "p2", "small"))
    assert waits.wake(["quota:p1"]) == ["a", "c"]
    assert len(waits) == 2


def test_requests_of_higher_priority_are_tried_first() -> None:
    waits = held(("a", "p1", "small"))
    waits.hold((-5, 9.0, "b"), "p1", "small", "quota:p1")
    assert waits.wake(["quota:p1"]) == ["b"]


def test_a_request_that_is_refused_again_is_the_first_again() -> None:
    waits = held(("a", "p1", "small"), ("b", "p1", "small"))
    waits.wake(["quota:p1"])
    waits.hold((0, 0.0, "a"), "p1", "small", "quota:p1")
    assert waits.wake(["quota:p1"]) == ["a"]


def test_a_cancelled_request_releases_no_other() -> None:
    waits = held(("a", "p1", "small"), ("b", "p1", "small"))
    assert waits.leave("a") is None
    assert "a" not in waits and waits.wake(["quota:p1"]) == ["b"]


@pytest.mark.parametrize(("key", "woken"), [("", ["a", "b"]), ("quota:", ["a", "b"]), ("other:", [])])
def test_a_prefix_wakes_every_key_that_begins_with_it(key: str, woken: list[str]) -> None:
    waits = held(("a", "p1", "small"), ("b", "p2", "small"))
    assert waits.wake([key]) == woken
    assert waits.woken_since("quota:p1", 0) == bool(woken)


def test_a_wake_during_an_evaluation_is_noticed() -> None:
    waits = RuleWaits()
    mark = waits.mark
    waits.wake(["quota:p1"])
    assert waits.woken_since("quota:p1", mark)
    assert not waits.woken_since("quota:p1", waits.mark)
    waits.hold((0, 0.0, "a"), "p1", "small", "quota:p1")
    mark = waits.mark
    waits.wake(["quota:p2"])
    assert not waits.woken_since("quota:p1", mark)


def test_a_new_request_does_not_stop_an_equal_one_that_is_to_be_tried_again() -> None:
    scheduler = scheduler_of(FakePlacement(a_candidate(1)))
    store = waiting_store_of(scheduler)
    requests = [a_request(number, project="p1", wait="1h") for number in (1, 2)]
    first, second = scheduler.begin(requests)
    entry = store.waiting(
        first, 0.0, 0, "quota of project p1", Decision(code="quota"), NO_CONTEXT, "quota:p1"
    )
    store.enter(entry)
    assert store.hold(entry, "quota:p1", store.rule_waits.mark)
    store.on_wakes({"quota:p1"})
    behind = store.behind(second, 1.0, 0, NO_CONTEXT)
    store.enter_stored([(behind, None)], {behind.request}, store.marks)
    assert entry.request not in store.rule_waits

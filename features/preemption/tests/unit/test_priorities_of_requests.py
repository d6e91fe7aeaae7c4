"""The priority of a request: the option of `berth boot`, and requests that differ only in it."""

from scheduler_worker.core.policy import ChoicePolicy
from tests.support.request_parts import field_of
from tests.support.rule_builders import a_wish, alternatives
from tests.support.scheduler_builders import a_request
from tests.unit.test_boot_command import Published, reply
from tests.unit.test_boot_command import published as published
from tests.unit.test_demands import orders
from tests.unit.test_policy import kinds


def test_the_option_and_the_request_that_it_describes(published: Published) -> None:
    assert reply("--wait", "30m", "--priority", "7") == (0, "")
    assert [field_of(published.request, name) for name in ("wait", "priority")] == ["30m", 7]


def test_a_priority_is_not_noted() -> None:
    assert not alternatives(priority=3, wait="5m")[-1].notes


def test_no_rule_distinguishes_requests_by_their_priority() -> None:
    wishes = a_wish(a_request(1, priority=1, wait="1h")), a_wish(a_request(2))
    assert kinds(ChoicePolicy(), *wishes) == 1


def test_requests_of_different_priority_share_no_alternatives() -> None:
    made = orders()
    first, second = made.begin(a_request(1), 0.0), made.begin(a_request(2, priority=3), 0.0)
    assert first.attempts is not second.attempts

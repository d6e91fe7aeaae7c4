"""Requests that permit a wait for capacity: the option of `berth boot`, refusals, rules that fail."""

from collections.abc import Callable
from typing import Any

import pytest

from features.waiting.core.waiting_request import Subject
from features.waiting.tables.queued import QueuedRequest
from features.waiting.tests.support.waiting_stores import waiting_store_of
from scheduler_worker.core.extension import Unreadable
from tests.support.boot_command import Published, reply
from tests.support.boot_command import published as published
from tests.support.ids import uid
from tests.support.rule_builders import alternatives
from tests.support.rule_errors import RULES, check_refusal
from tests.support.scheduler_builders import FakePlacement, a_candidate, a_request
from tests.support.schedulers import scheduler_of


@pytest.mark.parametrize(
    ("options", "wait"), [(["--wait", "30m"], "30m"), (["--wait=90s"], "90s"), (["--wait"], "")]
)
def test_the_option_and_the_request_that_it_describes(
    published: Published, options: list[str], wait: str
) -> None:
    assert reply(*options) == (0, "")
    assert published.request.parts.waits.longest == wait


def test_a_wait_beyond_the_maximum_is_refused() -> None:
    with pytest.raises(Unreadable) as refused:
        alternatives(wait="8d")
    assert "wait: 8d, at most 604800 seconds are allowed (the setting max_wait)" in str(refused.value)


@pytest.mark.parametrize(("kind", "made", "why"), RULES.values(), ids=RULES.keys())
async def test_a_request_that_may_wait_is_refused_with_the_name_of_the_rule_that_failed(
    kind: str, made: Callable[..., Any], why: str
) -> None:
    await check_refusal(kind, made, why, {"wait": "30m"})


def test_a_stored_request_of_a_deleted_feature_is_not_evaluated(caplog: pytest.LogCaptureFixture) -> None:
    store = waiting_store_of(scheduler_of(FakePlacement(a_candidate(1))))
    subject = Subject(purpose="unknown", action="copies", instance=uid(1, "b"), lane="c1", data="{}")
    store.enter_again(QueuedRequest(a_request(1), "k", 0.0, 1800.0, 7, "no room", subject=subject))
    assert not store.requests
    assert "no feature can read its subject" in caplog.text

"""Requests that permit a wait for capacity: the option of `berth boot`, refusals, rules that fail."""

from collections.abc import Callable
from typing import Any

import pytest

from features.waiting.messages import wait_of
from scheduler_worker.core.request import Unreadable
from tests.support.rule_builders import alternatives
from tests.unit import test_rule_errors
from tests.unit.test_boot_command import Published, reply
from tests.unit.test_boot_command import published as published


@pytest.mark.parametrize(
    ("options", "wait"), [(["--wait", "30m"], "30m"), (["--wait=90s"], "90s"), (["--wait"], "")]
)
def test_the_option_and_the_request_that_it_describes(
    published: Published, options: list[str], wait: str
) -> None:
    assert reply(*options) == (0, "")
    assert wait_of(published.request.parts) == wait


def test_a_wait_beyond_the_maximum_is_refused() -> None:
    with pytest.raises(Unreadable) as refused:
        alternatives(wait="8d")
    assert "wait: 8d, at most 604800 seconds are allowed (the setting max_wait)" in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "made", "why"), test_rule_errors.RULES.values(), ids=test_rule_errors.RULES.keys()
)
async def test_a_request_that_may_wait_is_refused_with_the_name_of_the_rule_that_failed(
    kind: str, made: Callable[..., Any], why: str
) -> None:
    await test_rule_errors.test_a_request_is_refused_with_the_name_of_the_rule_that_failed(
        kind, made, why, {"wait": "30m"}
    )

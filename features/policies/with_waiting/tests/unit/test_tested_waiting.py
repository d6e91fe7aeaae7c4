"""Tests of policies on requests that waited."""

import pytest

from berth.kit import BadSetting, Settings
from features.policies.policy_changes import changed_policy
from features.policies.with_waiting.tested_changes import without_waiting
from features.waiting.messages import priority_of
from tests.support.scheduler_builders import a_request


@pytest.mark.parametrize("change", ["share.p1=3", "weight.p1=3"])
def test_a_change_of_weights_is_refused(change: str) -> None:
    with pytest.raises(BadSetting, match=change.partition("=")[0]):
        changed_policy(Settings(), [change])


def test_a_request_that_waited_is_tried_with_its_priority_but_does_not_wait() -> None:
    tried = without_waiting(a_request(1, wait="7d", priority=3))
    assert priority_of(tried.parts) == 3
    assert not tried.parts.waits.longest

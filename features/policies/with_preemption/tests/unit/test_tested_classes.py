"""Changed priority classes in the test of a policy."""

from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from berth.kit import BadSetting, Settings
from features.policies.policy_changes import ChangedNumbers, changed_policy
from features.policies.with_preemption.tested_changes import PriorityChanges
from features.preemption.messages import PrioritiesFound, PriorityClass


def test_changed_classes_are_parsed() -> None:
    changes = ["priority.a.b.preempts=true", "priority.a.b.budget=3", "priority.new.value=5"]
    changed = changed_policy(Settings(), changes)
    [classes] = changed.stored
    assert isinstance(classes, PriorityChanges)
    assert classes.priorities == {"a.b": {"preempts": True, "budget": 3}, "new": {"value": 5}}
    assert changed.only_numbers == ChangedNumbers()  # requests that found a free host get it with any class


STORED_CLASSES = PrioritiesFound(classes=(PriorityClass(name="batch", value=1, grace=30.0),))


def asked_of(answer: object) -> Any:
    """Return a bus on which every query gets this answer."""
    return Mock(asker=lambda topic: AsyncMock(return_value=answer))


@pytest.mark.parametrize(
    ("change", "why"), [("priority.web.budget=4", "no such class"), ("priority.web.value=1", "another class")]
)
async def test_a_class_without_a_value_of_its_own_is_refused(change: str, why: str) -> None:
    changed = changed_policy(Settings(), [change])
    with pytest.raises(BadSetting, match=why):
        await changed.completed(asked_of(STORED_CLASSES))


@pytest.mark.parametrize(
    "change",
    [
        "priority.batch.grace=30s", "priority.batch.value=10", "priority.batch.budget=-1",
        "priority.batch.preempts=1",
    ],
)  # fmt: skip
def test_a_change_that_cannot_be_tested_is_refused(change: str) -> None:
    with pytest.raises(BadSetting, match=change.partition("=")[0]):
        changed_policy(Settings(), [change])

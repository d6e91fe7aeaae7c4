"""Changes of what other features store, such as quotas, in a test of a policy. Joins of this feature define
them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from bus.delivery.runner import Bus
from bus.messages import BuildRequested
from features.policies.decisions import RecordedDecision, RepeatedDecision
from features.policies.messages import MOST_TRIED

MODULE = "tested_changes"  # of a join, with its `ChangesPart`


class StoredChanges:
    """Base class of changes, in the test of a policy, to data that another feature stores, such as quotas.
    Each test of a policy makes one object of each subclass.
    """

    subject: ClassVar[str]  # what is changed, such as `quotas`; also the name in `TrialPolicy.supposes`
    at_once: ClassVar[int] = MOST_TRIED  # requests in one query for trials with these changes

    def __init__(self) -> None:
        self.taken = 0  # number of changes

    def take(self, change: str) -> bool:
        """Store a change such as `quota.p1.VCPU=4`; return False if the change is of something else. Raise
        BadSetting if the change is invalid.
        """
        raise NotImplementedError

    async def supposed(self, bus: Bus) -> str:
        """Return what a scheduler supposes in the trial, as JSON; empty: nothing. Raise BadSetting if what is
        stored makes a change invalid.
        """
        return ""

    def shows_in_record(self, decision: RecordedDecision) -> bool:
        """Return whether the record of a decision shows the effect of the changes."""
        return True

    async def repeated(
        self, bus: Bus, decisions: Sequence[RecordedDecision], repeated: Sequence[RepeatedDecision]
    ) -> list[RepeatedDecision]:
        """Return the `repeated` decisions with the effect of the changes that no trial has."""
        return list(repeated)


def unchanged(request: BuildRequested) -> BuildRequested:
    return request


@dataclass(frozen=True)
class ChangesPart:
    """The addition of a join to tests of policies."""

    make: Callable[[], StoredChanges]
    forms: str = ""  # the forms of its changes, for users
    # returns a request that got no host as it is tried again
    as_tried: Callable[[BuildRequested], BuildRequested] = unchanged

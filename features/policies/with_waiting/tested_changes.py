"""Tests of policies on requests that waited: they are tried as requests that do not wait."""

from msgspec import structs

from berth.kit import BadSetting
from bus.messages import BuildRequested
from features.policies.stored_changes import ChangesPart, StoredChanges
from features.waiting.messages import WaitPart

_NOT_RECORDED = (
    "weights of projects (fair share) decide when a request is served, not where, and the backlog of that"
    " time is not recorded"
)


class WeightChanges(StoredChanges):
    """Refuses changes of the weights of projects."""

    subject = "weights of projects"

    def take(self, change: str) -> bool:
        if change.partition(".")[0] in ("weight", "share"):
            raise BadSetting(f"--with {change}: {_NOT_RECORDED}")
        return False


def without_waiting(request: BuildRequested) -> BuildRequested:
    if (waits := request.parts.get(WaitPart)) is None:
        return request
    parts = request.parts.having(structs.replace(waits, wait=""))
    return structs.replace(request, parts=parts)


PART = ChangesPart(WeightChanges, as_tried=without_waiting)

"""Changes of quotas in the test of a policy, such as `quota.p1.VCPU=4`."""

from collections.abc import Sequence

from bus.delivery.runner import Bus
from features.policies.decisions import RecordedDecision, RepeatedDecision
from features.policies.stored_changes import ChangesPart, StoredChanges
from features.policies.with_quotas.quota_trials import with_quotas
from features.quotas.edits import check_resources, parsed_limits, project_to_edit, quotas_of


class QuotaChanges(StoredChanges):
    subject = "quotas"

    def __init__(self) -> None:
        super().__init__()
        self.limits: dict[str, dict[str, int]] = {}  # project ("": the default) → changed limits

    def take(self, change: str) -> bool:
        name, _, value = change.partition("=")
        subject, _, rest = name.partition(".")
        project, dot, resource = rest.rpartition(".")
        if subject != "quota" or not dot:
            return False
        limits = self.limits.setdefault(project_to_edit(project), {})
        limits |= parsed_limits([f"{resource}={value}"])
        return True

    async def supposed(self, bus: Bus) -> str:
        await check_resources(bus, {name for limits in self.limits.values() for name in limits})
        return ""

    async def repeated(
        self, bus: Bus, decisions: Sequence[RecordedDecision], repeated: Sequence[RepeatedDecision]
    ) -> list[RepeatedDecision]:
        return with_quotas(decisions, repeated, await quotas_of(bus, None), self.limits)


PART = ChangesPart(QuotaChanges, "quota.PROJECT.RESOURCE=LIMIT")

"""Changed quotas in the test of a policy."""

import pytest

from berth.kit import BadSetting, Settings
from features.policies.decisions import RecordedDecision, RepeatedDecision, Verdict
from features.policies.policy_changes import ChangedNumbers, changed_policy
from features.policies.with_quotas.quota_trials import with_quotas
from features.policies.with_quotas.tested_changes import QuotaChanges
from features.quotas.messages import Quota
from tests.support.scheduler_builders import a_request


def test_changed_limits_are_parsed() -> None:
    changes = ["quota.p.1.VCPU=4", "quota.p.1.instances=unlimited", "quota.default.instances=2"]
    changed = changed_policy(Settings(), changes)
    [quotas] = changed.stored
    assert isinstance(quotas, QuotaChanges)
    assert quotas.limits == {"p.1": {"VCPU": 4, "instances": -1}, "": {"instances": 2}}
    assert changed.only_numbers == ChangedNumbers()  # hosts are decided by the records
    with pytest.raises(BadSetting, match="RESOURCE=LIMIT"):
        changed_policy(Settings(), ["quota.p1.VCPU=-5"])
    with pytest.raises(BadSetting, match="no project is named"):  # a script with an unset variable
        changed_policy(Settings(), ["quota..VCPU=3"])


def a_decision(number: int, *, host: str = "h", exists: bool = True, vcpus: int = 2) -> RecordedDecision:
    request = a_request(number, project="p1")
    amounts = {"VCPU": vcpus}
    return RecordedDecision(str(number), float(number), request, host, amounts=amounts, exists=exists)


def with_limits(
    decisions: list[RecordedDecision], used: dict[str, int], **limits: int
) -> tuple[list[Verdict], list[str]]:
    """Return the verdict of each decision and the reasons, with limits of p1; its present limit is 8 VCPU."""
    quotas = [
        Quota(project="", limits={"instances": 100}),
        Quota(project="p1", limits={"VCPU": 8}, used=used),
    ]
    repeated = [
        RepeatedDecision(
            build=each.build, project="p1", flavor="f", at=each.at, recorded=each.host, before="h", after="h",
            verdict="same", by="record",
        )
        for each in decisions
    ]  # fmt: skip
    found = with_quotas(decisions, repeated, quotas, {"p1": limits})
    return [each.verdict for each in found], [each.why for each in found if each.why]


def test_a_deleted_instance_is_judged_and_does_not_count() -> None:
    decisions = [a_decision(1, exists=False), a_decision(2), a_decision(3, vcpus=4, exists=False)]
    assert with_limits(decisions, {"VCPU": 2, "instances": 1}, VCPU=4)[0] == ["same", "same", "nowhere"]


def test_a_request_that_the_quota_refused_is_placed_with_a_higher_limit() -> None:
    decisions = [a_decision(1), a_decision(2, host="", exists=False, vcpus=8)]
    assert with_limits(decisions, {"VCPU": 2, "instances": 1}, VCPU=10)[0] == ["same", "placed"]
    assert with_limits(decisions, {"VCPU": 2, "instances": 1}, VCPU=9)[0] == ["same", "none"]

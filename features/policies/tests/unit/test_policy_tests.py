"""Changes of a policy in words, decisions made again from their records, and the result of a policy test."""

from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from berth.settings import BadSetting, Settings
from bus.decisions import Record, RecordedHost, RecordedScale
from bus.errors import OperationRefused, Unavailable
from features.policies import policy_tests
from features.policies.core.policy_replay import reweighed
from features.policies.policy_changes import ChangedNumbers, changed_policy
from features.policies.policy_tests import PolicyTest, RecordedDecision, RepeatedDecision, Verdict
from features.policies.quota_trials import with_quotas
from features.preemption.messages import PrioritiesFound, PriorityClass
from features.quotas.messages import Quota
from tests.support.scheduler_builders import a_request

SCALES = (
    RecordedScale(weigher="ram", multiplier=1.0, lowest=0.0, highest=10.0),
    RecordedScale(weigher="cpu", multiplier=1.0, lowest=0.0, highest=10.0),
)
RECORD = Record(
    seed="s",
    scales=SCALES,
    hosts=(
        RecordedHost(root="roomy", host="roomy", values=(10.0, 4.0)),
        RecordedHost(root="fast", host="fast", values=(2.0, 9.0)),
    ),
)


@pytest.mark.parametrize(
    ("multipliers", "host"),
    [({}, "roomy"), ({"cpu": 3.0}, "fast"), ({"ram": -1.0}, "fast"), ({"ram": 2.0}, "roomy")],
)
def test_a_decision_is_made_again_from_its_record(multipliers: dict[str, float], host: str) -> None:
    again = reweighed("b", RECORD, multipliers, None, None)
    assert again is not None and again.host is not None
    assert again.host.host == host


def test_a_decision_without_the_values_of_a_changed_weigher_cannot_be_made_again() -> None:
    assert reweighed("b", RECORD, {"load": 1.0}, None, None) is None


def test_a_change_of_numbers_alone_is_recognized() -> None:
    changed = changed_policy(Settings(), ["weights.ram=2", "weights.cpu=-1", "subset=3", "near=0.5"])
    assert changed.only_numbers == ChangedNumbers({"ram": 2.0, "cpu": -1.0}, 3, 0.5)
    assert changed.trial.weighers["ram"] == 2.0 and changed.trial.weighers["build_failure"] == 6.0
    assert (changed.trial.subset, changed.trial.near) == (3, 0.5)


def test_a_settings_file_replaces_the_policy(tmp_path: Path) -> None:
    file = tmp_path / "next.toml"
    file.write_text('scheduler_filters = ["up"]\n[scheduler_weighers]\nram = -1.0\n')
    changed = changed_policy(Settings(), [str(file), "weights.cpu=2"])
    assert (changed.trial.filters, changed.trial.weighers) == (("up",), {"ram": -1.0, "cpu": 2.0})
    assert changed.only_numbers is None


@pytest.mark.parametrize("change", ["weights.ram=much", "ram", "ram=2", "rules.filters=-nothing", "subset=x"])
def test_a_change_that_is_not_understood_is_refused(change: str) -> None:
    with pytest.raises(BadSetting, match=change.split("=")[0]):
        changed_policy(Settings(), [change])


def test_changed_limits_are_parsed() -> None:
    changes = ["quota.p.1.VCPU=4", "quota.p.1.instances=unlimited", "quota.default.instances=2"]
    changed = changed_policy(Settings(), changes)
    assert changed.quotas == {"p.1": {"VCPU": 4, "instances": -1}, "": {"instances": 2}}
    assert changed.only_numbers == ChangedNumbers()  # hosts are decided by the records
    with pytest.raises(BadSetting, match="RESOURCE=LIMIT"):
        changed_policy(Settings(), ["quota.p1.VCPU=-5"])
    with pytest.raises(BadSetting, match="no project is named"):  # a script with an unset variable
        changed_policy(Settings(), ["quota..VCPU=3"])


def test_changed_classes_and_reservations_are_parsed() -> None:
    changes = ["priority.a.b.preempts=true", "priority.a.b.budget=3", "priority.new.value=5"]
    changed = changed_policy(Settings(), changes)
    assert changed.stored.priorities == {"a.b": {"preempts": True, "budget": 3}, "new": {"value": 5}}
    assert changed.only_numbers == ChangedNumbers()  # requests that found a free host get it with any class
    reserving = changed_policy(Settings(), ["reservation.x=none", "reservation.y=3xVCPU:2,CUSTOM_FAST"])
    assert reserving.stored.removed == ["x"] and reserving.only_numbers is None
    [added] = reserving.stored.added
    specs = {"resources:VCPU": "2", "trait:CUSTOM_FAST": "required"}
    assert (len(added.instances), added.flavor.name, added.flavor.extra_specs) == (3, "y", specs)


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
        await changed.stored.completed(asked_of(STORED_CLASSES), changed.trial)


@pytest.mark.parametrize(
    "change",
    [
        "priority.batch.grace=30s", "priority.batch.value=10", "priority.batch.budget=-1",
        "priority.batch.preempts=1", "reservation.x=VCPU", "reservation.x=2000xVCPU:1", "share.p1=3",
    ],
)  # fmt: skip
def test_a_change_that_cannot_be_tested_is_refused(change: str) -> None:
    with pytest.raises(BadSetting, match=change.partition("=")[0]):
        changed_policy(Settings(), [change])


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


def decision(number: int, verdict: Verdict) -> RepeatedDecision:
    return RepeatedDecision(
        build=str(number), project="p", flavor="f", at=0.0, recorded="", before="", after="",
        verdict=verdict, by="record",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("verdicts", "allow", "passes"),
    [
        (["same", "none"], 0.0, True),
        (["same", "elsewhere"], 0.0, False),
        (["same", "elsewhere"], 49.0, False),
        (["same", "nowhere"], 50.0, True),
        (["placed", "same"], 0.0, False),
    ],
)
def test_the_share_of_differences_decides(verdicts: list[Verdict], allow: float, passes: bool) -> None:
    result = PolicyTest([decision(number, verdict) for number, verdict in enumerate(verdicts)])
    assert result.passes(allow) == passes


def test_requests_that_lose_their_host_are_listed_first() -> None:
    verdicts: list[Verdict] = ["elsewhere", "same", "nowhere", "placed"]
    result = PolicyTest([decision(number, verdict) for number, verdict in enumerate(verdicts)])
    assert [each.verdict for each in result.differences] == ["nowhere", "elsewhere", "placed"]


async def test_decisions_of_a_cell_that_does_not_answer_are_unknown() -> None:
    bus = Mock(asker=lambda *_, **__: AsyncMock(side_effect=Unavailable("no conductor")))
    with pytest.raises(OperationRefused, match="no answer from c1, c2: its decisions are unknown"):
        await policy_tests.recorded_decisions(bus, Settings().having(cells=("c1", "c2")), 0.0, "", 10)

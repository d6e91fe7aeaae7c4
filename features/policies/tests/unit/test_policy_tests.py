"""Changes of a policy in words, decisions made again from their records, and the result of a policy test."""

from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from berth.kit import BadSetting, Settings
from bus.decisions import Record, RecordedHost, RecordedScale
from bus.errors import OperationRefused, Unavailable
from features.policies import policy_tests
from features.policies.core.policy_replay import reweighed
from features.policies.decisions import RepeatedDecision, Verdict
from features.policies.policy_changes import ChangedNumbers, changed_policy
from features.policies.policy_tests import PolicyTest

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

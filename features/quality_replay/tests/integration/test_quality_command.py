"""`berth policy quality --from-history` in an embedded berth: its own requests with other profiles."""

import json
from collections.abc import AsyncIterator
from dataclasses import fields
from pathlib import Path

import pytest

from berth.kit import BadSetting, BootOptions, boot_request, publish
from bus.errors import OperationRefused
from features.quality_replay.period import PeriodOutcome
from scheduler_worker.extension import PROFILES
from tests.support.command_line import CommandLine
from tests.support.living_berth import LivingBerth, Opened, opening_berths

HALF = ("--flavor", "half", "--vcpus", "1", "--memory-mb", "64000", "--disk-gb", "1")
PACKING = ("--with", "weights.ram=-1", "--with", "weights.cpu=-1")
WHOLE = ("--flavor", "whole", "--vcpus", "1", "--memory-mb", "120000", "--disk-gb", "1")


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Opened:
    return opening_berths(tmp_path, monkeypatch, capsys)


@pytest.fixture
async def berth(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LivingBerth]:
    """Three hosts of 130,560 MB, and the profile spread."""
    monkeypatch.setenv("BERTH_PLACEMENT_PROFILE", "spread")
    async with opened("c1", simulator={"hosts": 3}, placement_profile="spread") as berth:
        yield berth


async def test_requests_of_the_region_are_replayed_with_other_profiles(berth: LivingBerth) -> None:
    with pytest.raises(OperationRefused, match="no request is recorded"):
        await berth("policy", "quality", "--from-history")
    build, _ = await berth.boot(*WHOLE)
    await berth("delete", build, "--wait")
    first, second = [(await berth.boot(*HALF))[1] for _ in range(2)]
    assert first != second  # spread
    build, _ = await berth.boot(*WHOLE)
    await berth("boot", *WHOLE, "--wait", ends=1)  # the other hosts are half full
    await berth("delete", build, "--wait")  # too late for the refused one
    found = json.loads(await berth("policy", "quality", "--from-history", *PACKING, "--json"))
    assert found.keys() == {"from", "to", "at_begin", "outcomes", "notes"}
    assert found["from"] < found["to"] and found["at_begin"] == 0
    recorded, in_force, pack = found["outcomes"].values()
    figures = {each.name for each in fields(PeriodOutcome)}
    assert [each.keys() for each in (recorded, in_force, pack)] == [figures] * 3
    assert [each["hosts"] for each in (recorded, in_force, pack)] == [3, 3, 3]
    assert all(each["mean_hosts"] <= each["most_hosts"] for each in (recorded, in_force, pack))
    assert {*recorded["fits"]} == {*in_force["fits"]} == {*pack["fits"]} == {"half", "whole"}
    changed = "spread with weights.ram=-1 weights.cpu=-1"
    assert list(found["outcomes"]) == ["as recorded", "spread (in force)", changed]
    assert [each["requested"] for each in (recorded, in_force, pack)] == [5, 5, 5]
    assert [each["refused"] for each in (recorded, in_force, pack)] == [1, 1, 0]
    assert [each["most_hosts"] for each in (recorded, in_force, pack)] == [3, 3, 3]
    assert (pack["gained"], pack["lost"]) == (1, 0)
    assert any("nothing is recorded before" in note for note in found["notes"])
    shown = await berth("policy", "quality", "--from-history", "--since", "1h", *PACKING)
    assert "5 requested instances, 3 hosts, 0 instances at the begin" in shown
    assert f"{changed}: " in shown and "1 instance more with a host" in shown
    for profile in PROFILES.keys() - {"spread"}:
        assert f"\n{profile}: " in await berth("policy", "quality", "--from-history")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "needs --from-history"),
        (("--from-history", "--since", "soon"), "--since soon: takes a time"),
        (("--from-history", "--profile", "full"), "no such profile; there are: "),
        (("--from-history", "--with", "weights.rum=1"), "unknown weigher 'rum'"),
        (("--from-history", "--with", "quota.default.instances=1"), "quotas are not replayed"),
    ],
)
async def test_a_wrong_option_is_refused_with_the_reason(
    words: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadSetting, match=says):
        await CommandLine("policy quality", monkeypatch, capsys)(*words)


async def test_a_request_that_still_waits_counts_as_without_a_host(berth: LivingBerth) -> None:
    for _ in range(3):
        await berth.boot(*WHOLE)
    waits = boot_request(BootOptions(flavor="whole", memory_mb=120_000, wait="30m"))
    await publish(berth.bus, waits)
    await berth.waits(waits.request)
    found = json.loads(await berth("policy", "quality", "--from-history", *PACKING, "--json"))
    assert [each["refused"] for each in found["outcomes"].values()] == [1, 1, 1]
    assert [each["requested"] for each in found["outcomes"].values()] == [4, 4, 4]

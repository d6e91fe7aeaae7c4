"""The time machine in an embedded berth: past states, decisions as of then, and replays."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from berth.settings import BadSetting
from bus.errors import OperationRefused
from tests.support.ids import uid
from tests.support.living_berth import LivingBerth, Opened, opening_berths

ONE = ("--vcpus", "1", "--memory-mb", "1024", "--disk-gb", "1")
AT_MOST_ONE = (
    "--with", "rules.filters=+num_instances", "--with", "rules.num_instances.max_instances_per_host=1",
)  # fmt: skip


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Opened:
    return opening_berths(tmp_path, monkeypatch, capsys)


@pytest.fixture
async def berth(opened: Opened) -> AsyncIterator[LivingBerth]:
    async with opened("c1", hosts=2) as berth:
        yield berth


def now() -> str:
    return datetime.now(UTC).isoformat()


async def last_change(berth: LivingBerth) -> str:
    return str(json.loads(await berth("at", "0s", "show", "--json"))["number"])


async def test_a_deleted_instance_is_shown_on_its_host_of_then(berth: LivingBerth) -> None:
    empty = await last_change(berth)
    build, host = await berth.boot(*ONE)
    then = await last_change(berth)
    await berth("delete", build, "--wait")
    assert build in await berth("at", then, "show", host)
    shown = await berth("at", then, "show", build)
    assert f"on {host}: " in shown and "INSTANCE of project" in shown
    assert f"active on {host}" in await berth("at", then, "why", build)
    for time, words in ((empty, ("show", build)), ("0s", ("show", build)), (then, ("show", "nothing"))):
        with pytest.raises(OperationRefused, match="there was no host, provider or consumer"):
            await berth("at", time, *words)
    whole = json.loads(await berth("at", empty, "show", "--json"))["capacity"]["VCPU"] // 2
    full = (f"VCPU:{whole}",)
    assert (await berth("at", empty, "capacity", *full)).count(" 2 ") > 0
    assert json.loads(await berth("at", then, "capacity", *full, "--json"))["plan"]["mixes"] == 1


@pytest.mark.parametrize(
    ("time", "error", "says"),
    [
        ("yesterday", BadSetting, "'yesterday' is no time"),
        ("9d", OperationRefused, "the history begins later"),
        ("2999-01-01", OperationRefused, "lies in the future"),
        ("99999999", OperationRefused, "the last change of placement is"),
    ],
)
async def test_a_time_without_a_state_is_refused(
    berth: LivingBerth, time: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        await berth("at", time, "show")


async def test_decisions_are_replayed_on_the_hosts_of_their_time(berth: LivingBerth) -> None:
    begin = now()
    builds = [(await berth.boot(*ONE))[0] for _ in range(3)]
    for build in builds:
        await berth("delete", build, "--wait")
    period = ("replay", "--from", begin, "--to", now())
    shown = await berth(*period)
    assert "3 placed, 0 changed, 3 deleted" in shown and "3 (100.0 %) would get the same host" in shown
    lines = (await berth(*period, *AT_MOST_ONE, "--json", ends=1)).splitlines()
    decisions = {each["build"]: each for each in map(json.loads, lines)}
    verdicts = [decisions[build]["verdict"] for build in builds]
    assert verdicts[0] == "same" and verdicts[2] == "nowhere"
    assert {each["by"] for each in decisions.values()} == {"hosts of then"}
    with pytest.raises(BadSetting, match="`berth rules test`"):
        await berth(*period, "--with", "quota.default.instances=1")
    with pytest.raises(BadSetting, match="earlier"):
        await berth("replay", "--from", "1h", "--to", "2h")
    assert "the replay is not possible" in await berth("replay", "--from", "9d", ends=2)
    with pytest.raises(OperationRefused, match="there is no build"):
        await berth("at", "0s", "why", uid(1))

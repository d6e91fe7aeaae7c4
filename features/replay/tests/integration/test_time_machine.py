"""The time machine in an embedded berth: past states, decisions as of then, and replays."""

import asyncio
import json
import logging
import random
import zlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from berth.kit import BadSetting, Settings
from bus.clock import monotonic
from bus.errors import OperationRefused
from bus.sql.database import Database
from features.history.archive_store import read_snapshot
from features.history.messages import SnapshotPart
from features.history.past import PastCloud
from features.history.reading import PastTime, StateHistory
from features.policies.policy_tests import recorded_decisions
from features.replay.commands import policy_of
from features.replay.replay import Replay
from placement_worker.extension import Book
from tests.support.berth_processes import run_berth, running
from tests.support.churning_client import ChurningClient
from tests.support.ids import uid
from tests.support.living_berth import LivingBerth, Opened, opening_berths

log = logging.getLogger(__name__)

BOOTS, STATES = 100_000, 200
ONE = ("--vcpus", "1", "--memory-mb", "1024", "--disk-gb", "1")
NO_HOST = (
    "--with", "rules.filters=+few_failures", "--with", "rules.few_failures.max_build_failures=0",
)  # fmt: skip


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Opened:
    return opening_berths(tmp_path, monkeypatch, capsys)


@pytest.fixture
async def berth(opened: Opened) -> AsyncIterator[LivingBerth]:
    async with opened("c1", simulator={"hosts": 2}) as berth:
        yield berth


def now() -> str:
    return datetime.now(UTC).isoformat()


async def last_change(berth: LivingBerth) -> str:
    return str(json.loads(await berth("audit", "at", "0s", "show", "--json"))["number"])


async def test_a_deleted_instance_is_shown_on_its_host_of_then(berth: LivingBerth) -> None:
    empty = await last_change(berth)
    build, host = await berth.boot(*ONE)
    then, active = await last_change(berth), now()
    await berth("delete", build, "--wait")
    assert build in await berth("audit", "at", then, "show", host)
    shown = await berth("audit", "at", then, "show", build)
    assert f"on {host}: " in shown and "INSTANCE of project" in shown
    assert f"building on {host}" in await berth(
        "audit", "at", then, "why", build
    )  # its claim is the last change
    assert f"active on {host}" in await berth("audit", "at", active, "why", build)
    for time, words in ((empty, ("show", build)), ("0s", ("show", build)), (then, ("show", "nothing"))):
        with pytest.raises(OperationRefused, match="there was no host, provider or consumer"):
            await berth("audit", "at", time, *words)
    fits = [
        json.loads(await berth("audit", "at", time, "capacity", "VCPU:1", "--json"))["plan"]["mixes"]
        for time in (empty, then)
    ]
    assert fits[0] - fits[1] == 1


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
        await berth("audit", "at", time, "show")


async def test_decisions_are_replayed_on_the_hosts_of_their_time(berth: LivingBerth) -> None:
    begin = now()
    builds = [(await berth.boot(*ONE))[0] for _ in range(3)]
    for build in builds:
        await berth("delete", build, "--wait")
    period = ("policy", "replay", "--from", begin, "--to", now())
    shown = await berth(*period)
    assert "3 placed, 0 changed, 3 deleted" in shown and "3 (100.0 %) would get the same host" in shown
    lines = (await berth(*period, *NO_HOST, "--json", ends=1)).splitlines()
    decisions = {each["build"]: each for each in map(json.loads, lines)}
    assert [decisions[build]["verdict"] for build in builds] == ["nowhere"] * 3
    assert {each["by"] for each in decisions.values()} == {"hosts of then"}
    with pytest.raises(BadSetting, match="`berth policy test`"):
        await berth(*period, "--with", "quota.default.instances=1")
    with pytest.raises(BadSetting, match="earlier"):
        await berth("policy", "replay", "--from", "1h", "--to", "2h")
    assert "the replay is not possible" in await berth("policy", "replay", "--from", "9d", ends=2)
    with pytest.raises(OperationRefused, match="there is no build"):
        await berth("audit", "at", "0s", "why", uid(1))


def loaded(number: int, parts: list[bytes]) -> PastCloud:
    cloud = PastCloud(number, 0.0)
    for part in parts:
        cloud.load(msgspec.json.decode(zlib.decompress(part), type=SnapshotPart))
    return cloud


async def snapshots(database_url: str, churn: ChurningClient) -> dict[int, list[bytes]]:
    """Read placement's state from its database at random moments of the churn."""
    database, book = Database(database_url, namespace="placement"), Book()
    found, chance = dict[int, list[bytes]](), random.Random(4)
    try:
        for state in range(1, STATES + 1):
            due = (state - chance.random()) * churn.builds / STATES
            while churn.ended < due:
                await asyncio.sleep(0.01)
            async with database.read() as tx:
                number, parts = await read_snapshot(tx, book)
            found[number] = parts
    finally:
        await database.close()
    return found


@pytest.mark.soak
@pytest.mark.services
async def test_states_of_a_hundred_thousand_boots_are_read_and_replayed(
    servers: Settings, database_url: str, tmp_path: Path
) -> None:
    settings = servers.having(
        cells=("c1", "c2"),
        simulator={"hosts": 400, "build_time": "exponential:0.2"},
        state_dir=str(tmp_path),
        layout="compact",
        keep_changes=2000,
    )
    async with running(settings) as berth, asyncio.TaskGroup() as group:
        await asyncio.sleep(0)
        churn, begin = ChurningClient(berth, BOOTS), berth.bus.clock.now()
        readers = await churn.listen(group)
        reading = group.create_task(snapshots(database_url, churn))
        await churn.request()
        found = await reading
        end = berth.bus.clock.now()
        for reader in readers:
            reader.cancel()
        longest = 0.0
        for number, parts in found.items():
            began = monotonic()
            cloud = await StateHistory(berth.bus, PastTime("then", number=number)).state()
            longest = max(longest, monotonic() - began)
            assert not cloud.differs_from(loaded(number, parts)), number
        began = monotonic()
        name = next(iter(cloud.roots))
        shown = run_berth(
            ("audit", "at", str(cloud.number), "show", name), tmp_path, environment_of(settings)
        )
        command = monotonic() - began
        assert shown.returncode == 0, shown.stderr
        decisions = (await recorded_decisions(berth.bus, settings, begin, "", 1000)).decisions
        began = monotonic()
        replay = Replay(berth.bus, settings, policy_of(settings, []), decisions)
        result = await replay.run(PastTime("the begin", begin), end, lambda _: None)
        took = monotonic() - began
        log.warning(
            "%d states, longest question %.2f s, command %.2f s; %d changes of %.0f s replayed in %.1f s",
            len(found), longest, command, result.last - result.first, end - begin, took,
        )  # fmt: skip
    assert len(found) >= STATES * 0.9 and longest < 2 and command < 2
    assert result.placed >= BOOTS and result.is_proven and result.test.passes(0)
    assert (end - begin) / took >= 20


def environment_of(settings: Settings) -> dict[str, str]:
    return {
        "BERTH_AMQP_URL": settings.bus.amqp_url, "BERTH_DATABASE_URL": settings.database.url,
        "BERTH_EXCHANGE": settings.bus.exchange, "BERTH_CELLS": ",".join(settings.cell_names),
        "BERTH_STATE_DIR": settings.database.state_dir,
    }  # fmt: skip

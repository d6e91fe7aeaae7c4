"""An instance in an embedded berth, by its commands: moved, resized, shelved, evacuated, drained."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from berth import wiring
from berth.commands import builds, draining, hosts, instances, move_list, moves, steering, why
from berth.commands.run import ready
from berth.embedded import embedded
from berth.operations.audit import audit
from berth.settings import Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.local import LocalTransport
from bus.queries import FindWaiting, WaitingRequest
from tests.support.command_line import CommandLine
from tests.support.move_builders import a_move
from tests.support.waiting import until

HOMES: dict[str, ModuleType] = {
    "boot": builds, "delete": builds, "drain": draining, "evacuate": draining, "host": hosts,
    "moves": move_list, "confirm": steering, "revert": steering, "abort": steering, "waiting": instances,
    "why": why,
}  # fmt: skip


class LivingBerth:
    def __init__(
        self, settings: Settings, bus: Bus, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.settings, self.bus, self._patch, self._capsys = settings, bus, patch, capsys

    async def __call__(self, *words: str, ends: int = 0) -> str:
        line = CommandLine(words[0], HOMES.get(words[0], moves), self._patch, self._capsys)
        return await line(*words[1:], ends=ends)

    async def boot(self, *words: str) -> tuple[str, str]:
        """The build, and its host."""
        said = json.loads((await self("boot", *words, "--wait", "--json")).splitlines()[-1])
        assert said["status"] == "active", said
        return said["build"], said["host"]

    async def ends(self, *words: str, ends: int = 0) -> dict[str, Any]:
        told = await self(*words, "--wait", "--json", ends=ends)
        return dict(json.loads(told.splitlines()[-1]))

    async def waits(self, build: str) -> WaitingRequest:
        """Its move that waits for room."""
        found = list[WaitingRequest]()

        async def listed() -> bool:
            found[:] = (await self.bus.asker(topics.WAITING)(FindWaiting(requests=(build,)))).waiting
            return bool(found)

        await until(listed)
        return found[0]

    async def clean(self) -> None:
        """Once clean-ups are over nothing is held but by builds that are there."""

        async def settled() -> bool:
            found = await audit(self.settings, settled=True)
            return found.clean and set(found.types) <= {"INSTANCE"}

        await until(settled, picture=lambda: audit(self.settings, settled=True))


@pytest.fixture
async def berth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[LivingBerth]:
    monkeypatch.setenv("BERTH_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("BERTH_CELLS", "c1")
    settings = Settings().having(
        state_dir=str(tmp_path), cells=("c1",), hosts=4, build_time="constant:0.01", heartbeat=0.5
    )
    async with embedded(settings) as running:
        await ready(running.bus, settings)
        monkeypatch.setattr(wiring, "transport", lambda *_, **__: LocalTransport(running.broker))
        yield LivingBerth(settings, running.bus, monkeypatch, capsys)


async def test_an_instance_is_moved_in_every_way_and_deleted(berth: LivingBerth) -> None:
    build, first = await berth.boot("--vcpus", "2", "--image", "debian")
    second = await berth.ends("move", build)
    assert (second["end"], second["host"] != first) == ("done", True)
    told = await berth("why", second["move"])
    assert f"to {second['host']} in cell c1: ended done" in told and "the best" in told
    live = await berth.ends("move", build, "--live", "--to", first)
    assert (live["end"], live["host"]) == ("done", first)

    bigger = await berth.ends("resize", build, "--vcpus", "4")
    assert bigger["end"] == "verifying"
    back = await berth.ends("revert", build)
    assert (back["end"], back["host"]) == ("reverted", first)
    await berth.ends("resize", build, "--vcpus", "4")
    grown = await berth.ends("confirm", build)
    assert grown["end"] == "done"

    assert (await berth.ends("rebuild", build, "--image", "alpine"))["host"] == grown["host"]
    assert (await berth.ends("shelve", build))["end"] == "done"
    await berth.clean()
    third = await berth.ends("unshelve", build)
    assert third["end"] == "done"

    fourth = await berth.ends("move", build, "--to", first if third["host"] != first else second["host"])
    assert fourth["end"] == "done"
    shown = await berth("moves", "show", build)
    assert f"to {fourth['host']} in cell c1: ended done" in shown
    assert len((await berth("moves", "list", "--all", "--json")).splitlines()) == 8
    assert "deleted" in await berth("delete", build, "--wait")
    await berth.clean()


async def test_a_dead_host_is_evacuated_and_one_that_lives_is_drained(berth: LivingBerth) -> None:
    there = [await berth.boot("--host", "c1-host00001") for _ in range(3)]
    told = await berth("evacuate", there[0][1], "--wait")
    assert "c1-host00001: 3 moved, none stays" in told
    where = {
        json.loads(line)["host"] for line in (await berth("moves", "list", "--all", "--json")).splitlines()
    }
    assert "c1-host00001" not in where
    for host in sorted(where):
        assert "none stays" in await berth("drain", host, "--max", "2")
        await berth("host", "enable", host, "--because", "drain")
    for build, _ in there:
        await berth("delete", build, "--wait")
    await berth("host", "force-down", "c1-host00001", "--undo")
    await berth.clean()


async def test_what_waits_for_room_is_listed_explained_ended_and_goes_when_there_is_some(
    berth: LivingBerth,
) -> None:
    build, host = await berth.boot()
    there = "c1-host00001" if host != "c1-host00001" else "c1-host00002"
    await berth("host", "disable", there)
    would = await berth("move", build, "--to", there, "--dry-run", ends=1)
    assert f"{build}: no migrate: " in would and "no host would do" in would
    drained = await berth("drain", host, "--dry-run")
    assert f"{host}: would be disabled, and 1 instances moved" in drained

    asked = a_move(1, build=build, wanted_host=there, wait="30m")
    await berth.bus.publish(asked)
    assert (await berth.waits(build)).request == asked.move
    assert f"migrate {asked.move} of {build}: waits for room" in await berth("why", asked.move)
    assert build in await berth("waiting")
    assert f"{build} waits no more" in await berth("abort", build)
    assert f"migrate {asked.move} of {build}: refused [cancelled]" in await berth("why", asked.move)

    following = asyncio.create_task(berth("move", build, "--to", there, "--live", "--wait", "30m"))
    await berth.waits(build)
    await berth("host", "enable", there)
    told = await following
    assert f"{build} moved to {there}" in told
    await berth("delete", build, "--wait")
    await berth.clean()


async def test_what_finds_no_host_stays_where_it_is(berth: LivingBerth) -> None:
    build, host = await berth.boot()
    refused = await berth.ends("move", build, "--to", "nowhere", ends=1)
    assert refused["end"] == "refused" and refused["code"]
    too_big = await berth.ends("resize", build, "--vcpus", "9999", ends=1)
    assert (too_big["end"], too_big["code"]) == ("refused", "class")
    told = await berth("why", too_big["move"])
    assert f"resize {too_big['move']} of {build}: refused [class]: no valid host among" in told
    assert "considered" in told and "came closest" in told
    assert host in await berth("drain", host, "--dry-run")
    await berth.clean()

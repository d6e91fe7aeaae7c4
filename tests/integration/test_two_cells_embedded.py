"""An instance in an embedded berth goes from one cell to the other, by its commands, and is found there."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from berth import wiring
from berth.commands import builds, draining, instances, move_list, moves, steering, why
from berth.commands.run import ready
from berth.embedded import embedded
from berth.operations.audit import audit
from berth.settings import Settings
from bus.local import LocalTransport
from tests.support.command_line import CommandLine
from tests.support.waiting import until

HOMES: dict[str, ModuleType] = {
    "boot": builds, "delete": builds, "drain": draining, "instances": instances, "moves": move_list,
    "confirm": steering, "revert": steering, "why": why,
}  # fmt: skip


class BerthOfTwoCells:
    def __init__(
        self, settings: Settings, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.settings, self._patch, self._capsys = settings, patch, capsys

    async def __call__(self, *words: str, ends: int = 0) -> str:
        line = CommandLine(words[0], HOMES.get(words[0], moves), self._patch, self._capsys)
        return await line(*words[1:], ends=ends)

    async def ends(self, *words: str, ends: int = 0) -> dict[str, Any]:
        told = await self(*words, "--wait", "--json", ends=ends)
        return dict(json.loads(told.splitlines()[-1]))

    async def where(self, build: str) -> tuple[str, str]:
        """The cell and the status, of the one row that there is."""
        rows = [json.loads(line) for line in (await self("instances", "--json")).splitlines()]
        [row] = [row for row in rows if row["build"] == build]
        return row["cell"], row["status"]

    async def clean(self) -> None:
        async def settled() -> bool:
            found = await audit(self.settings, settled=True)
            return found.clean and set(found.types) <= {"INSTANCE"}

        await until(settled, picture=lambda: audit(self.settings, settled=True))


@pytest.fixture
async def berth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[BerthOfTwoCells]:
    monkeypatch.setenv("BERTH_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("BERTH_CELLS", "c1,c2")
    settings = Settings().having(
        state_dir=str(tmp_path), cells=("c1", "c2"), hosts=4, build_time="constant:0.01", heartbeat=0.5
    )
    async with embedded(settings) as running:
        await ready(running.bus, settings)
        monkeypatch.setattr(wiring, "transport", lambda *_, **__: LocalTransport(running.broker))
        yield BerthOfTwoCells(settings, monkeypatch, capsys)


async def test_an_instance_goes_to_the_other_cell_and_back_and_is_found_where_it_is(
    berth: BerthOfTwoCells,
) -> None:
    said = await berth.ends("boot", "--vcpus", "2", "--image", "debian", "--cell", "c1")
    build, first = said["build"], said["host"]
    there = await berth.ends("move", build, "--to-cell", "c2")
    assert (there["end"], await berth.where(build)) == ("done", ("c2", "active"))
    assert there["host"] in await berth("why", build)
    [shown] = [json.loads(line) for line in (await berth("moves", "list", "--all", "--json")).splitlines()]
    assert (shown["cell"], shown["phase"], shown["at"]) == ("c2", "done", there["host"])
    await berth.clean()

    back = await berth.ends("resize", build, "--vcpus", "3", "--to", first)  # which is in c1
    assert (back["end"], back["host"], await berth.where(build)) == ("verifying", first, ("c1", "verifying"))
    reverted = await berth.ends("revert", build)
    assert (reverted["end"], reverted["host"]) == ("reverted", there["host"])
    assert await berth.where(build) == ("c2", "active")

    await berth("drain", "--cell", "c2", "--to-cell", "c1")
    assert await berth.where(build) == ("c1", "active")
    await berth.ends("shelve", build)
    awake = await berth.ends("unshelve", build, "--to-cell", "c2", ends=1)
    assert awake["end"] == "refused"  # its hosts are closed since they were drained
    assert "deleted" in await berth("delete", build, "--wait")
    await berth.clean()

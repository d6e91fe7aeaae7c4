"""From another system into a cell: imported over the API, adopted, moved, deleted; with clean books."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from berth import wiring
from berth.commands import adopting, builds, draining, instances, moves, why
from berth.commands.run import ready
from berth.embedded import embedded
from berth.importing.bring_over import Import
from berth.importing.client import PlacementClient
from berth.importing.placement_contents import ImportedConsumer
from berth.operations.audit import audit
from berth.settings import Settings
from bus.local import LocalTransport
from deploy.servers import free_port
from tests.support.command_line import CommandLine
from tests.support.ids import uid
from tests.support.waiting import until

HOMES = {
    "adopt": adopting, "delete": builds, "drain": draining, "instances": instances, "move": moves,
    "why": why,
}  # fmt: skip
WEB, DB, TWO_HOSTS = uid(1), uid(2), uid(3)


class ImportedBerth:
    def __init__(
        self, settings: Settings, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.settings, self._patch, self._capsys = settings, patch, capsys

    async def __call__(self, *words: str, ends: int = 0) -> str:
        line = CommandLine(words[0], HOMES[words[0]], self._patch, self._capsys)
        return await line(*words[1:], ends=ends)

    async def brings_over(self, on: dict[str, tuple[str, ...]]) -> None:
        """Consumers, with what they hold of hosts by their names, as from another Placement."""
        async with PlacementClient(f"http://{self.settings.placement.http}", "admin") as client:
            here = await client.world(lambda *_: None)
            ids = {provider.name: provider.id for provider in here.providers.values()}
            held = {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 10}
            consumers = {
                id_: ImportedConsumer(id_, "p", "u", "INSTANCE", {ids[host]: held for host in hosts})
                for id_, hosts in on.items()
            }
            there = replace(here, consumers=consumers)
            done = await Import(there, here, client, lambda *_: None).run(prune=False)
            assert (done.claimed, done.failed) == (len(on), {})


@pytest.fixture
async def berth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[ImportedBerth]:
    monkeypatch.setenv("BERTH_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("BERTH_CELLS", "c1")
    settings = Settings().having(
        state_dir=str(tmp_path), cells=("c1",), hosts=3, build_time="constant:0.01", heartbeat=0.5,
        placement_http=f"127.0.0.1:{free_port()}",
    )  # fmt: skip
    async with embedded(settings) as running:
        await ready(running.bus, settings)
        monkeypatch.setattr(wiring, "transport", lambda *_, **__: LocalTransport(running.broker))
        yield ImportedBerth(settings, monkeypatch, capsys)


async def test_what_came_over_is_adopted_moved_drained_and_deleted(
    berth: ImportedBerth, tmp_path: Path
) -> None:
    first, second, third = (f"c1-host0000{number}" for number in (1, 2, 3))
    await berth.brings_over({WEB: (first,), DB: (second,), TWO_HOSTS: (first, second)})
    file = tmp_path / "servers.csv"
    file.write_text(f"ID,Name,Host,Flavor\n{WEB},web,{first},m1.small\n{DB},db,{second},m1.small\n")

    shown = await berth("adopt", "--all", "--from", str(file), ends=1)
    assert f"would be adopted: {WEB} web on {first} in cell c1 (10 DISK_GB, 512 MEMORY_MB, 2 VCPU)" in shown
    assert f"for you to judge: {TWO_HOSTS}: it holds something of 2 hosts" in shown
    assert (await audit(berth.settings)).builds == {}

    told = json.loads(await berth("adopt", "--all", "--from", str(file), "--yes", "--json", ends=1))
    assert {one["build"] for one in told["adopted"]} == {WEB, DB}
    assert [*told["listed"]] == [TWO_HOSTS]
    again = json.loads(await berth("adopt", WEB, "--yes", "--json"))
    assert (again["adopted"], [*again["known"]]) == ([], [WEB])
    assert "web" in await berth("instances", "--host", first)
    assert "it was there before berth, and was adopted" in await berth("why", WEB)

    moved = json.loads((await berth("move", WEB, "--to", third, "--wait", "--json")).splitlines()[-1])
    assert (moved["end"], moved["host"]) == ("done", third)
    assert "1 moved, none stays" in await berth("drain", second)
    for build in (WEB, DB):
        assert "deleted" in await berth("delete", build, "--wait")

    async def clean() -> bool:
        found = await audit(berth.settings, settled=True)
        return found.clean and found.types == {"INSTANCE": 1} and found.others == 1

    await until(clean, picture=lambda: audit(berth.settings, settled=True))

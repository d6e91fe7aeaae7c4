"""An embedded berth with simulated hosts, and its commands, for tests that move instances."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from berth import composition
from berth.commands.run import ready
from berth.importing.bring_over import Import
from berth.importing.writers import writer_for
from berth.kit.placement_client import PlacementClient
from berth.kit.placement_contents import ImportedConsumer
from berth.operations.audit import audit
from berth.services import embedded
from berth.settings import Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.local import LocalBroker, LocalTransport
from bus.queries import FindWaiting, WaitingRequest
from tests.support.command_line import CommandLine, Done
from tests.support.waiting import until

Opened = Callable[..., AbstractAsyncContextManager["LivingBerth"]]


class LivingBerth:
    def __init__(
        self, settings: Settings, bus: Bus, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.settings, self.bus, self._patch, self._capsys = settings, bus, patch, capsys

    def _line(self, word: str) -> CommandLine:
        return CommandLine(word, self._patch, self._capsys)

    async def __call__(self, *words: str, ends: int = 0) -> str:
        return await self._line(words[0])(*words[1:], ends=ends)

    async def done(self, *words: str) -> Done:
        return await self._line(words[0]).done(*words[1:])

    async def boot(self, *words: str) -> tuple[str, str]:
        """Boot an instance; return its id and its host."""
        answer = json.loads((await self("boot", *words, "--wait", "--json")).splitlines()[-1])
        assert answer["status"] == "active", answer
        return answer["build"], answer["host"]

    async def ends(self, *words: str, ends: int = 0) -> dict[str, Any]:
        sent = await self(*words, "--wait", "--json", ends=ends)
        return dict(json.loads(sent.splitlines()[-1]))

    async def waits(self, build: str) -> WaitingRequest:
        """Return the move of this build that waits for capacity, as soon as it is listed."""
        found = list[WaitingRequest]()

        async def listed() -> bool:
            found[:] = (await self.bus.asker(topics.WAITING)(FindWaiting(requests=(build,)))).waiting
            return bool(found)

        await until(listed)
        return found[0]

    async def clean(self) -> None:
        """Wait until the audit finds no problem, and only instances hold allocations."""

        async def settled() -> bool:
            found = await audit(self.settings, settled=True)
            return found.clean and set(found.types) <= {"INSTANCE"}

        await until(settled, picture=lambda: audit(self.settings, settled=True))

    async def where(self, build: str) -> tuple[str, str]:
        """Return the cell and the status of a build; fail unless exactly one row lists the build."""
        rows = [json.loads(line) for line in (await self("instance", "list", "--json")).splitlines()]
        [row] = [row for row in rows if row["build"] == build]
        return row["cell"], row["status"]

    async def import_consumers(self, on: dict[str, tuple[str, ...]]) -> None:
        """Import consumers (id → names of hosts on which it has allocations), as from another Placement."""
        async with PlacementClient(f"http://{self.settings.placement.http}", "admin") as client:
            here = await client.world(lambda *_: None)
            ids = {provider.name: provider.id for provider in here.providers.values()}
            held = {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 10}
            consumers = {
                id_: ImportedConsumer(id_, "p", "u", "INSTANCE", {ids[host]: held for host in hosts})
                for id_, hosts in on.items()
            }
            there = replace(here, consumers=consumers)
            writer = await writer_for(client)
            done = await Import(there, here, client, writer, lambda *_: None).run(prune=False)
            assert (done.claimed, done.failed) == (len(on), {})


@dataclass(frozen=True)
class RunningBerth:
    """An embedded berth that runs in this event loop, such as that of a module's tests."""

    settings: Settings
    broker: LocalBroker
    bus: Bus

    def commands(self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> LivingBerth:
        """Return its commands, for one test."""
        patch.setenv("BERTH_STATE_DIR", self.settings.database.state_dir)
        patch.setenv("BERTH_CELLS", ",".join(self.settings.cells.names))
        patch.setattr(composition, "transport", lambda *_, **__: LocalTransport(self.broker))
        return LivingBerth(self.settings, self.bus, patch, capsys)


@asynccontextmanager
async def a_running_berth(
    directory: Path, *cells: str, simulator: Mapping[str, Any] = {}, **given: Any
) -> AsyncIterator[RunningBerth]:
    settings = Settings().having(
        state_dir=str(directory),
        cells=cells,
        simulator={"build_time": "constant:0.01", **simulator},
        heartbeat=0.5,
        **given,
    )
    async with embedded(settings) as running:
        await ready(running.bus, settings)
        yield RunningBerth(settings, running.broker, running.bus)


def opening_berths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Opened:
    """Return a function that opens an embedded berth, with these settings, for the commands of a test."""

    @asynccontextmanager
    async def open_berth(*cells: str, **given: Any) -> AsyncIterator[LivingBerth]:
        async with a_running_berth(tmp_path, *cells, **given) as running:
            yield running.commands(monkeypatch, capsys)

    return open_berth

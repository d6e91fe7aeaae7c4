"""A build whose agent is dead can be deleted; its capacity is held until the guest is destroyed."""

import asyncio
import io
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from berth import wiring, worker_roles
from berth.commands.builds import boot, delete
from berth.commands.terminal import Cli
from berth.operations.audit import audit
from berth.operations.boot_options import BootOptions, boot_request
from berth.operations.host_states import ByName
from berth.settings import Settings
from bus.claims import CLEANUP
from bus.local import LocalBroker, LocalTransport
from cell_conductor import AttemptLimits
from placement_worker import trees_of_consumers
from tests.support.waiting import DEADLINE, in_time, until


class BerthInPieces:
    def __init__(self, settings: Settings, group: asyncio.TaskGroup) -> None:
        self.settings = settings
        self.broker = LocalBroker()
        self._group = group
        self._lives: dict[str, asyncio.Task[None]] = {}

    def start(self, worker: str) -> None:
        (role,) = [role for role in worker_roles.roles(self.settings) if role.worker == worker]
        life = wiring.serve([role], self.settings, LocalTransport(self.broker), asyncio.Event())
        self._lives[worker] = self._group.create_task(life)

    async def kill(self, worker: str) -> None:
        life = self._lives.pop(worker)
        life.cancel()
        await asyncio.wait([life])

    async def end(self) -> None:
        for worker in ("scheduler", "compute", "ironic", "conductor", "placement"):
            await self.kill(worker)

    async def kept(self) -> set[str | None]:
        """The types of all that hold anything."""
        placement = wiring.database(self.settings, worker_roles.Role("placement"))
        try:
            return {held.type for held in (await trees_of_consumers(placement)).values()}
        finally:
            await placement.close()


@pytest.fixture
async def berth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BerthInPieces]:
    settings = Settings().having(
        cells=("c1",), hosts=1, state_dir=str(tmp_path), delete_timeout=0.5, build_time="constant:0"
    )
    monkeypatch.setattr("cell_conductor.AttemptLimits", partial(AttemptLimits, look_every=0.05))
    async with asyncio.TaskGroup() as group:
        berth = BerthInPieces(settings, group)
        monkeypatch.setattr(wiring, "transport", lambda settings, name: LocalTransport(berth.broker))
        for role in worker_roles.roles(settings):
            berth.start(role.worker)
        yield berth
        await berth.end()


async def test_a_delete_with_a_dead_agent_ends_and_keeps_the_allocations(
    berth: BerthInPieces,
) -> None:
    say = Console(file=io.StringIO(), width=200)
    builds: list[str] = []

    async def booted() -> bool:
        request = boot_request(BootOptions(vcpus=1, memory_mb=512, disk_gb=1))
        builds[:] = request.instances
        return await boot(Cli(berth.settings, False, say), request, True, DEADLINE, ByName()) == 0

    await until(booted, "its host was heard of")  # before that there is no host, and no build

    (build,) = builds
    await berth.kill("compute")
    assert await in_time(delete(Cli(berth.settings, False, say), build, "c1", True, timeout=DEADLINE)) == 0
    assert await berth.kept() == {CLEANUP}
    found = await audit(berth.settings, settled=True)
    assert (found.breaches, found.builds) == ([], {"deleted": 1})
    assert [note.partition(": ")[2] for note in found.notes] == [
        "holds resources of a guest that may still exist"
    ]

    berth.start("compute")
    await until(lambda: _nothing(berth), "the agent is back, and said destroyed")
    found = await audit(berth.settings, settled=True)
    assert (found.breaches, found.notes, found.consumers) == ([], [], 0)


async def _nothing(berth: BerthInPieces) -> bool:
    return await berth.kept() == set()

"""The simulated hosts with their agents' disks. A disk can be a database in memory: of the transaction in
which its agent is killed, it has all or nothing.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID, uuid5

from bus.messages import GuestOrder
from bus.requests import BuildSpec
from compute_sim.agent_disk import AgentDisk, GuestFile, GuestRows
from compute_sim.core.drivers import NumaDriver
from compute_sim.guests import GuestRecord
from compute_sim.machines import Hardware, SimAgent, SimHost, fleet
from features.moves.messages import MoveOrdered
from tests.simulation.invariants import GuestSeen, check_guests

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld

CELLS = ("c1", "c2")
_NAMES = UUID("0b0e8a52-6c3c-4f0b-9d0b-5f2f6d1e7a10")
_COMMIT_SECONDS = 0.02  # at most, of a transaction


def simulated_fleet(hosts_per_cell: int, hosts_per_agent: int) -> list[SimAgent]:
    hardware = Hardware(vcpus=8, memory_mb=8192, disk_gb=100, vcpu_ratio=1.0, baremetal=2)
    agents = fleet(CELLS, hosts_per_cell, hosts_per_agent, hardware=hardware)
    return [replace(agent, hosts=(*agent.hosts, _numa_host(agent))) for agent in agents]


def _numa_host(agent: SimAgent) -> SimHost:
    root = str(uuid5(_NAMES, agent.agent))
    cells = NumaDriver(
        vcpus=4, vcpu_ratio=1.0, pcpus=0, memory_mb=2048, reserved_mb=0, pages={}, disk_gb=0, traits=()
    )
    return SimHost(root, f"{agent.agent}-numa", {}, drivers=(cells,))


class FileInMemory(GuestFile):
    """An agent's file of guests in memory, whose transactions take some virtual milliseconds."""

    def __init__(self, chance: Random, content: sqlite3.Connection | None = None) -> None:
        super().__init__(Path("guests"))
        self.chance = chance
        self.content = content or sqlite3.connect(":memory:", isolation_level=None)
        self._in_progress: tuple[asyncio.TimerHandle, GuestRows] | None = None

    @property
    def is_behind(self) -> bool:
        """Return whether changes are not committed yet."""
        return self._committed < self._changes

    def kill(self) -> None:
        """End the agent's process: its transaction in progress is complete or absent."""
        if self._in_progress is not None:
            timer, rows = self._in_progress
            self._in_progress = None
            timer.cancel()
            if self.chance.random() < 0.5:
                self._write(rows)
        self._database = None

    def _connect(self) -> sqlite3.Connection:
        return self.content

    def _commit(self, rows: GuestRows) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        committed: asyncio.Future[None] = loop.create_future()

        def complete() -> None:
            self._in_progress = None
            self._write(rows)
            committed.set_result(None)

        if self._database is not None:  # else the process was killed
            seconds = self.chance.random() * _COMMIT_SECONDS
            self._in_progress = loop.call_later(seconds, complete), rows
        return committed


class WatchedDisk(AgentDisk):
    """An agent's disk, which checks the guests of the world after each change."""

    def __init__(self, world: "SimulatedWorld", file: FileInMemory | None = None) -> None:
        self.world = world
        self._moved: set[tuple[str, int]] = set()
        super().__init__(file=file)

    def after_power_failure(self) -> "WatchedDisk":
        """Return the disk as the agent's next process finds it."""
        if not isinstance(self.file, FileInMemory):
            return self
        self.file.kill()
        found = WatchedDisk(self.world, FileInMemory(self.file.chance, self.file.content))
        found._moved |= self._moved
        return found

    def seen(self) -> list[GuestSeen]:
        running = {id(guest) for guest in self.running()}
        return [
            GuestSeen(
                record.build,
                record.attempt,
                record.root,
                record.allocations,
                id(record) in running,
                (record.build, record.attempt) not in self._moved,
            )
            for record in self.all_guests
        ]

    def begin(self, order: GuestOrder) -> None:
        if isinstance(order, MoveOrdered):
            self._moved.add((order.build, order.attempt))
        super().begin(order)
        self.world.check(check_guests)

    def rename(self, guest: GuestRecord, attempt: int, spec: BuildSpec | None = None) -> GuestRecord:
        self._moved.add((guest.build, attempt))
        return super().rename(guest, attempt, spec)

    def remove(self, build: str, attempts: range) -> None:
        self.world.check(check_guests)
        super().remove(build, attempts)


def _checked(name: str) -> Callable[..., object]:
    changes: Callable[..., object] = getattr(WatchedDisk, name)

    def checked(disk: WatchedDisk, *given: object) -> object:
        result = changes(disk, *given)
        disk.world.check(check_guests)
        return result

    return checked


for _name in ("become", "rename", "finished", "wake"):
    setattr(WatchedDisk, _name, _checked(_name))

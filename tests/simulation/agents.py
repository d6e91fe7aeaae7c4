"""The simulated hosts with their agents' disks. A disk can be a file of lines, of which a killed agent loses
those that are not on disk yet; the last line on disk can be torn.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID, uuid5

from bus.agent_builds import GuestOrder
from bus.requests import BuildSpec
from compute_sim import guests
from compute_sim.core.drivers import NumaDriver
from compute_sim.guests import AgentDisk, GuestRecord
from compute_sim.machines import Hardware, SimAgent, SimHost, fleet
from features.moves.messages import MoveOrdered
from tests.simulation.invariants import GuestSeen, check_guests

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld

CELLS = ("c1", "c2")
_NAMES = UUID("0b0e8a52-6c3c-4f0b-9d0b-5f2f6d1e7a10")
_WRITE_SECONDS = 0.02  # at most, until a line is on disk
_COMPACTED_AFTER = 40  # lines


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


class TornFile:
    """An agent's file of guests in memory, with the interface of `GuestFile`. Lines reach the disk some
    virtual milliseconds after they are added.
    """

    def __init__(self, chance: Random, content: bytes = b"") -> None:
        self.chance = chance
        self.content = content
        self._waiting: list[bytes] = []
        self._added = self._written = 0
        self._snapshot: Callable[[], Iterable[guests.Line]] = tuple

    @property
    def unwritten(self) -> int:
        """Return the number of lines that are not on disk yet."""
        return len(self._waiting)

    def open(self) -> list[guests.Line]:
        lines, sound = guests._read(self.content)
        self.content = self.content[:sound]
        return lines

    def shorten_by(self, snapshot: Callable[[], Iterable[guests.Line]]) -> None:
        self._snapshot = snapshot

    def add(self, *lines: guests.Line) -> None:
        self._waiting += map(guests._line, lines)
        self._added += len(lines)

    async def settled(self) -> None:
        until = self._added
        if until > self._written:
            await asyncio.sleep(self.chance.random() * _WRITE_SECONDS)
        self._write(until)

    def _write(self, until: int) -> None:
        count = until - self._written
        if count <= 0:
            return
        self.content += b"".join(self._waiting[:count])
        del self._waiting[:count]
        self._written = until
        if not self._waiting and self.content.count(b"\n") > _COMPACTED_AFTER:
            self.content = b"".join(map(guests._line, self._snapshot()))

    def close(self) -> None:
        pass

    def after_power_failure(self) -> "TornFile":
        """Return the file as the next process finds it: a random part of the unwritten lines is there."""
        unwritten = b"".join(self._waiting)
        return TornFile(self.chance, self.content + unwritten[: self.chance.randint(0, len(unwritten))])


class WatchedDisk(AgentDisk):
    """An agent's disk, which checks the guests of the world after each change."""

    def __init__(self, world: "SimulatedWorld", file: TornFile | None = None) -> None:
        self.world = world
        self._moved: set[tuple[str, int]] = set()
        super().__init__(file=file)  # type: ignore[arg-type]  # it has the interface of a GuestFile

    def after_power_failure(self) -> "WatchedDisk":
        """Return the disk as the agent's next process finds it."""
        if not isinstance(self.file, TornFile):
            return self
        self.world.happened["torn"] += self.file.unwritten > 0
        found = WatchedDisk(self.world, self.file.after_power_failure())
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

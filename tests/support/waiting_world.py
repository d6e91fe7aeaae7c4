"""A placement, schedulers with waiting requests, and a conductor with scripted answers, on a bus
in this process.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from berth.composition import open_placement
from berth.features import packages
from berth.settings import Settings
from bus import topics
from bus.aggregates import AggregateEdit, AggregateEditRequested
from bus.cells import CellEditRequested, RegisterCell
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildCancelled, BuildConflict, BuildPlaced, BuildUnplaceable, HostReported
from bus.queries import FindWaiting, WaitingFound
from bus.reports import HostState, Inventory
from bus.resources import Edit, EditRequested
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.topics import Address
from bus.vocabulary import Message
from placement_worker import placement_worker
from tests.support.cloud_workers import a_scheduler
from tests.support.ids import uid
from tests.support.placement_builders import a_report
from tests.support.scheduler_builders import METAL, a_request
from tests.support.waiting import receive_all

CELL = "c1"
NODE = {"CUSTOM_BAREMETAL": Inventory(total=1)}
TAKEN = {"CUSTOM_BAREMETAL": Inventory(total=1, reserved=1)}


@dataclass
class WaitingWorld:
    clock: Clock
    broker: LocalBroker
    placement: Database
    kept: Database  # the schedulers' database
    group: asyncio.TaskGroup
    bus: Bus
    placed: list[tuple[float, BuildPlaced]] = field(default_factory=list)
    unplaceable: list[BuildUnplaceable] = field(default_factory=list)
    cancelled: list[BuildCancelled] = field(default_factory=list)
    conflicts: list[BuildConflict] = field(default_factory=list)
    lives: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _sequence: int = 0

    async def scheduler(self, name: str, **options: Any) -> None:
        """Start a scheduler with this name; `kill` ends it."""
        self.lives[name] = self.group.create_task(self._live(options))
        await asyncio.sleep(0.05)

    async def kill(self, name: str) -> None:
        life = self.lives.pop(name)
        life.cancel()
        await asyncio.wait([life])

    async def ask(self, number: int, **fields: Any) -> str:
        """Publish a request that may wait for capacity; return the id of its first build."""
        request = a_request(number, **{"flavor": METAL, "wait": "30m", **fields})
        await self.bus.publish(request)
        return request.instances[0]

    async def node(self, number: int, *, free: bool = True) -> None:
        await self.report(number, NODE if free else TAKEN)

    async def report(self, number: int, inventories: dict[str, Inventory], **given: Any) -> None:
        self._sequence += 1
        await self.bus.publish(a_report(number, sequence=self._sequence, inventories=inventories, **given))

    async def host_says(self, number: int, **state: Any) -> None:
        self._sequence += 1
        hosts = (HostState(root=uid(number, "a"), host=f"host-{number}", **state),)
        reply = HostReported(cell=CELL, agent=f"agent-{number}", sequence=self._sequence, hosts=hosts)
        await self.bus.publish(reply)

    async def cell(self, *, enabled: bool) -> None:
        edit = RegisterCell(cell=CELL, enabled=enabled)
        await self.bus.asker(topics.EDIT_CELL)(CellEditRequested(edit=edit))

    async def edit(self, edit: Edit) -> None:
        await self.bus.asker(topics.EDIT)(EditRequested(edit=edit))

    async def edit_aggregate(self, edit: AggregateEdit) -> None:
        await self.bus.asker(topics.EDIT_AGGREGATE)(AggregateEditRequested(edit=edit))

    async def waiting(self, **asked: Any) -> WaitingFound:
        return await self.bus.asker(topics.WAITING)(FindWaiting(**asked))

    async def say(self, *messages: Message) -> None:
        await self.bus.publish(*messages)

    async def until(self, several: int, what: list[Any]) -> None:
        for _ in range(3000):
            if len(what) >= several:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{len(what)} of {several} within 30 s")

    def hosts(self) -> list[str]:
        return [one.chosen.host for _, one in self.placed]

    def requests(self) -> list[str]:
        return [one.request for _, one in self.placed]

    async def _live(self, options: dict[str, Any]) -> None:
        async with Bus(LocalTransport(self.broker), self.clock) as bus:
            worker = a_scheduler(bus, self.clock, database=self.kept, **options)
            await bus.serve(worker, asyncio.Event())

    async def handle(self) -> None:
        placed = await self.bus.listen(topics.BUILD_PLACED.at(cell=CELL))
        unplaceable = await self.bus.listen(Address(topics.BUILD_UNPLACEABLE, "build.unplaceable.#"))
        cancelled = await self.bus.listen(Address(topics.BUILD_CANCELLED, "build.cancelled.#"))

        conflicts = await self.bus.listen(Address(topics.BUILD_CONFLICT, "build.conflict.#"))
        takers = (
            receive_all(placed, lambda one: self.placed.append((self.clock.monotonic(), one))),
            receive_all(unplaceable, self.unplaceable.append),
            receive_all(cancelled, self.cancelled.append),
            receive_all(conflicts, self.conflicts.append),
        )
        for number, taker in enumerate(takers):
            self.lives[f"listener {number}"] = self.group.create_task(taker)


@asynccontextmanager
async def waiting_world(*schedulers: str) -> AsyncIterator[WaitingWorld]:
    """Run these schedulers, or one scheduler s1, with the clock of the event loop."""
    loop = asyncio.get_running_loop()
    clock = Clock(lambda: 1_700_000_000.0 + loop.time(), random.Random(5), loop.time)
    placement, kept = (Database("sqlite+aiosqlite://", inline=True) for _ in range(2))
    await migrate(placement, *packages("placement"))
    await migrate(kept, *packages("scheduler"))
    broker = LocalBroker(clock=clock)
    async with asyncio.TaskGroup() as group:
        async with Bus(LocalTransport(broker), clock) as bus:
            world = WaitingWorld(clock, broker, placement, kept, group, bus)
            worker = placement_worker(open_placement(Settings(), placement, clock), bus.publish, ("c1",))
            world.lives["placement"] = group.create_task(bus.serve(worker, asyncio.Event()))
            await world.handle()
            await asyncio.sleep(0.05)
            for name in schedulers or ("s1",):
                await world.scheduler(name)
            try:
                yield world
            finally:
                for life in world.lives.values():
                    life.cancel()
    await placement.close()
    await kept.close()

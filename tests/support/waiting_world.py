"""A placement, schedulers with waiting requests, and a conductor with scripted answers, on a bus
in this process.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from bus import topics
from bus.aggregates import AggregateEdit, AggregateEditRequested
from bus.cells import CellEditRequested, RegisterCell
from bus.claims import Choice, Claimed, ClaimRequested, ConsumerClaim, ReleaseRequested, holder_consumer
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.groups import GroupEdit, GroupEditRequested
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildCancelled, BuildPlaced, BuildUnplaceable, HostReported
from bus.moves import MovePlaced, MoveRefused, MoveRequested
from bus.queries import BuildsFound, BuildStands, FindBuilds, FindWaiting, WaitingFound, WaitingRequest
from bus.reports import HostState, Inventory
from bus.requests import Flavor
from bus.resources import Edit, EditRequested
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.topics import Address
from bus.vocabulary import Message
from bus.worker import Worker, answers, on
from placement_worker import Placement, placement_worker
from tests.support.cloud_workers import a_scheduler
from tests.support.ids import uid
from tests.support.move_builders import a_move
from tests.support.placement_builders import a_report
from tests.support.scheduler_builders import METAL, SMALL, a_request
from tests.support.waiting import receive_all

CELL = "c1"
NODE = {"CUSTOM_BAREMETAL": Inventory(total=1)}
TAKEN = {"CUSTOM_BAREMETAL": Inventory(total=1, reserved=1)}
ROOM = {"VCPU": Inventory(total=8), "MEMORY_MB": Inventory(total=8192), "DISK_GB": Inventory(total=80)}
VM = SMALL


@dataclass
class WaitingWorld:
    clock: Clock
    broker: LocalBroker
    placement: Database
    kept: Database  # the schedulers' own
    group: asyncio.TaskGroup
    bus: Bus
    placed: list[tuple[float, BuildPlaced]] = field(default_factory=list)
    unplaceable: list[BuildUnplaceable] = field(default_factory=list)
    cancelled: list[BuildCancelled] = field(default_factory=list)
    lives: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _sequence: int = 0

    async def scheduler(self, name: str, **options: Any) -> None:
        """Start one; it is killed with `kill`."""
        self.lives[name] = self.group.create_task(self._live(options))
        await asyncio.sleep(0.05)

    async def kill(self, name: str) -> None:
        life = self.lives.pop(name)
        life.cancel()
        await asyncio.wait([life])

    async def ask(self, number: int, **fields: Any) -> str:
        """A request that waits for room; the id of its first build."""
        fields = {"flavor": METAL, "wait": "30m", **fields}
        request = a_request(number, **fields)
        await self.bus.publish(request)
        return request.instances[0]

    async def node(self, number: int, *, free: bool = True) -> None:
        await self.report(number, NODE if free else TAKEN)

    async def report(self, number: int, inventories: dict[str, Inventory], **given: Any) -> None:
        self._sequence += 1
        await self.bus.publish(a_report(number, sequence=self._sequence, inventories=inventories, **given))

    async def host_says(self, number: int, **state: Any) -> None:
        self._sequence += 1
        await self.bus.publish(
            HostReported(
                cell=CELL,
                agent=f"agent-{number}",
                sequence=self._sequence,
                hosts=(HostState(root=uid(number, "a"), host=f"host-{number}", **state),),
            )
        )

    async def cell(self, *, enabled: bool) -> None:
        edit = RegisterCell(cell=CELL, enabled=enabled)
        await self.bus.asker(topics.EDIT_CELL)(CellEditRequested(edit=edit))

    async def edit(self, edit: Edit) -> None:
        await self.bus.asker(topics.EDIT)(EditRequested(edit=edit))

    async def edit_aggregate(self, edit: AggregateEdit) -> None:
        await self.bus.asker(topics.EDIT_AGGREGATE)(AggregateEditRequested(edit=edit))

    async def edit_group(self, edit: GroupEdit) -> None:
        await self.bus.asker(topics.EDIT_GROUP)(GroupEditRequested(edit=edit))

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

        takers = (
            receive_all(placed, lambda one: self.placed.append((self.clock.monotonic(), one))),
            receive_all(unplaceable, self.unplaceable.append),
            receive_all(cancelled, self.cancelled.append),
        )
        for number, taker in enumerate(takers):
            self.lives[f"listener {number}"] = self.group.create_task(taker)


@asynccontextmanager
async def waiting_world(
    clock: Clock, placement: Database, kept: Database, *schedulers: str
) -> AsyncIterator[WaitingWorld]:
    await migrate(placement, "placement_worker")
    await migrate(kept, "scheduler_worker")
    broker = LocalBroker(clock=clock)
    async with asyncio.TaskGroup() as group:
        async with Bus(LocalTransport(broker), clock) as bus:
            world = WaitingWorld(clock, broker, placement, kept, group, bus)
            worker = placement_worker(Placement(placement, clock), bus.publish, ("c1",))
            world.lives["placement"] = group.create_task(bus.serve(worker, asyncio.Event()))
            await world.handle()
            await asyncio.sleep(0.05)
            for name in schedulers:
                await world.scheduler(name)
            try:
                yield world
            finally:
                for life in world.lives.values():
                    life.cancel()
    await placement.close()
    await kept.close()


TWO = Flavor(name="two", vcpus=2)


@dataclass
class WaitingMovers:
    world: WaitingWorld
    stands: dict[str, BuildStands] = field(default_factory=dict)
    placed: list[MovePlaced] = field(default_factory=list)
    refused: list[MoveRefused] = field(default_factory=list)
    deaf: bool = False

    async def live(self) -> None:
        worker = Worker(
            f"conductor.{CELL}",
            consumes=[
                on(topics.MOVE_PLACED.at(cell=CELL), self._on_placed),
                on(Address(topics.MOVE_REFUSED, "move.refused.#"), self._on_refused, private=True),
            ],
            answers=[answers(topics.FIND_BUILDS, self._find, cell=CELL)],
        )
        async with Bus(LocalTransport(self.world.broker), self.world.clock) as bus:
            await bus.serve(worker, asyncio.Event())

    # What a test does

    async def host(self, number: int, vcpus: int) -> None:
        await self.world.report(number, {"VCPU": Inventory(total=max(vcpus, 1), reserved=0 if vcpus else 1)})

    async def heard(self, seconds: float, of: int) -> None:
        for _ in range(int(seconds / 2)):
            await self.world.host_says(of)
            await asyncio.sleep(2.0)

    async def boot(self, number: int, on: int, **fields: Any) -> str:
        several = len(self.world.placed)
        given = {"flavor": TWO, "forced_host": f"host-{on}", **fields}
        await self.world.bus.publish(a_request(number, **given))
        await self.world.until(several + 1, self.world.placed)
        return self.know(self.world.placed.pop()[1])

    def know(self, placed: BuildPlaced) -> str:
        self.stands[placed.build] = BuildStands(
            build=placed.build, status="active", placed=placed, host=placed.chosen.host, attempt=1,
            generation=placed.generation, chosen=placed.chosen, spec=placed.spec,
        )  # fmt: skip
        return placed.build

    async def ask(self, build: str, number: int = 1, kind: str = "migrate", **fields: Any) -> MoveRequested:
        move = a_move(number, kind, build=build, **{"wait": "30m", **fields})
        await self.world.bus.publish(move)
        return move

    def change(self, build: str, **so: Any) -> None:
        self.stands[build] = replace(self.stands[build], **so)

    async def is_deleted(self, build: str) -> None:
        """Its cell has taken it down."""
        release = ReleaseRequested(consumer=build, generation=self.stands[build].generation, retire="deleted")
        await self.world.bus.asker(topics.RELEASE)(release)
        self.change(build, status="deleted", generation=None, chosen=None)

    async def was_moved(self, build: str, to: int) -> None:
        stands = self.stands[build]
        assert stands.chosen is not None
        await self.world.host_says(to, enabled=False)
        await self.host(to, 8)
        choice = Choice({uid(to, "a"): {"VCPU": 2}})
        claim = ConsumerClaim(
            consumer=build, generation=stands.generation, choices=(choice,), project="p", user="u",
            keep=holder_consumer(build, stands.attempt),
        )  # fmt: skip
        answer = await self.world.bus.asker(topics.CLAIM)(ClaimRequested(claims=(claim,)))
        [result] = answer.results
        assert isinstance(result, Claimed)
        chosen = replace(stands.chosen, root=uid(to, "a"), host=f"host-{to}", choice=choice)
        self.change(build, attempt=stands.attempt + 1, generation=result.generation, chosen=chosen)

    def has_moved(self, placed: MovePlaced) -> None:
        assert placed.chosen is not None
        self.change(
            placed.build, move=placed.move, attempt=placed.attempt + 1, generation=placed.generation,
            chosen=placed.chosen, host=placed.chosen.host, spec=placed.spec,
        )  # fmt: skip

    async def waiting(self) -> list[WaitingRequest]:
        return list((await self.world.waiting()).waiting)

    async def _on_placed(self, placed: MovePlaced) -> None:
        self.placed.append(placed)

    async def _on_refused(self, refused: MoveRefused) -> None:
        self.refused.append(refused)

    async def _find(self, question: FindBuilds) -> BuildsFound:
        if self.deaf:
            await asyncio.sleep(3600.0)
        return BuildsFound(
            builds=tuple(self.stands[build] for build in question.builds if build in self.stands)
        )


@asynccontextmanager
async def waiting_movers(world: WaitingWorld, full: int = 0) -> AsyncIterator[WaitingMovers]:
    """Host 1 has a build, and host 2 room for so many processors."""
    movers = WaitingMovers(world)
    world.lives["conductor"] = world.group.create_task(movers.live())
    await asyncio.sleep(0.05)
    await movers.host(1, 8)
    await movers.host(2, full)
    await asyncio.sleep(0.2)
    yield movers

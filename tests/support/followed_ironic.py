"""An Ironic that is followed, in virtual time: replicas of ironic_sync, a placement in memory."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.local import LocalBroker, LocalTransport
from bus.messages import InventoryReported
from bus.rabbit.foreign import Gap, Hear
from bus.replication import PlacementChanged, ProviderChange
from bus.worker import Worker, answers, on_many
from ironic_sync import FollowedIronic, NodeSelection, ironic_sync
from ironic_sync.core.node import Place, from_rest
from ironic_sync.core.rule import report
from placement_worker.core.trees import Tree
from placement_worker.store.tree_reads import changes_between
from tests.support.fake_ironic import FakeIronic, node_number
from tests.support.ironic_builders import a_notification
from tests.support.swept_ironic import PlacedTrees

SELECTION = NodeSelection(cell="c1")
NOON = 1_800_000_000.0


class SaidByHand:
    """Ironic's notifications, from a test: a way that has no broker in it."""

    def __init__(self) -> None:
        self.bound = asyncio.Event()
        self.hearing = False
        self._handle: Hear
        self._gap: Gap

    async def run(self, handle: Hear, gap: Gap) -> None:
        self._handle, self._gap = handle, gap
        self.hearing = True
        gap()
        self.bound.set()
        await asyncio.get_running_loop().create_future()

    async def say(self, event: str, at: float, node: dict[str, Any]) -> None:
        await self.bound.wait()
        await self._handle([a_notification(event, at, node)])

    async def say_bytes(self, *bodies: bytes) -> None:
        await self.bound.wait()
        await self._handle(bodies)

    def goes_deaf(self) -> None:
        """The broker is away."""
        self.hearing = False

    def was_interrupted(self) -> None:
        self.hearing = True
        self._gap()


class FollowedWorld:
    def __init__(self, bus: Bus, broker: LocalBroker, group: asyncio.TaskGroup, **more: Any) -> None:
        self.ironic = FakeIronic()
        self.placed = PlacedTrees()
        self.ahead = 0.0  # seconds by which berth's wall clock is wrong
        self.replicas: list[SaidByHand] = []
        self._loop = asyncio.get_running_loop()
        self._bus = bus
        self._broker = broker
        self._group = group
        self._lives: list[asyncio.Task[None]] = []
        self.clock = Clock(now=lambda: self.time, chance=random.Random(1), monotonic=self._loop.time)
        self._more: dict[str, Any] = {"sweep_seconds": 3600.0, "pages_per_second": 1e9, **more}
        self._number = 0
        self._held_back: list[PlacementChanged] | None = None

    @property
    def time(self) -> float:
        return NOON + self._loop.time()

    async def start(self) -> SaidByHand:
        voice = SaidByHand()
        clock = Clock(now=lambda: self.time + self.ahead, chance=random.Random(1), monotonic=self._loop.time)
        ironic = FollowedIronic(
            selection=SELECTION,
            notifications=voice,  # type: ignore[arg-type]
            api=self.ironic.api(clock=clock),
            **self._more,
        )

        async def live() -> None:
            async with Bus(LocalTransport(self._broker), self.clock) as bus:
                worker = ironic_sync(ironic, bus.publish, bus.asker(topics.PROVIDERS), clock=clock)
                await bus.serve(worker, asyncio.Event())

        self.replicas.append(voice)
        self._lives.append(self._group.create_task(live()))
        await voice.bound.wait()
        await asyncio.sleep(20.0)
        return voice

    async def kill_all(self) -> None:
        for life in self._lives:
            life.cancel()
        await asyncio.wait(self._lives)
        self._lives.clear()
        self.replicas.clear()

    async def change(self, heard_by: SaidByHand | None, number: int, event: str, **changes: Any) -> None:
        await asyncio.sleep(3.0)
        self.ironic.now = int(self.time)
        self.ironic.change(number, **changes)
        if heard_by is not None:
            await heard_by.say(event, self.time, self.ironic.nodes[node_number(number)])

    async def takes(self, number: int, *, open: bool) -> float:
        began = self._loop.time()
        async with asyncio.timeout(7200.0):
            while self.placed.is_open(number) != open:
                await asyncio.sleep(0.01)
        return self._loop.time() - began

    def placement(self) -> Worker:
        async def take(reports: Sequence[InventoryReported]) -> list[PlacementChanged | None]:
            return [self._take(report) for report in reports]

        return Worker(
            "placement",
            consumes=[on_many(topics.INVENTORY_REPORTED, take, emits=[topics.PLACEMENT_CHANGED])],
            answers=[answers(topics.PROVIDERS, self.placed.find)],
        )

    def _take(self, report: InventoryReported) -> PlacementChanged | None:
        before = self.placed.trees.get(report.root, Tree(report.root))
        self.placed.report(report)
        changes: list[ProviderChange] = changes_between([(before, self.placed.trees[report.root])])
        if not changes:
            return None
        self._number += 1
        said = PlacementChanged(number=self._number, changes=tuple(changes))
        if self._held_back is None:
            return said
        self._held_back.append(said)
        return None

    def hold_changes_back(self) -> None:
        self._held_back = []

    async def tell_changes(self) -> None:
        held, self._held_back = self._held_back or [], None
        await self._bus.publish(*held)

    def reopen_by_hand(self, number: int) -> None:
        before = self.placed.trees[node_number(number)]
        node = from_rest(self.ironic.nodes[before.root] | {"maintenance": False})
        said = report(node, Place(cell=before.cell, agent=before.agent), before.sequence + 1)
        assert said is not None
        self.placed.report(said)


@asynccontextmanager
async def followed(**more: Any) -> AsyncIterator[FollowedWorld]:
    time = asyncio.get_running_loop().time
    clock = Clock(now=lambda: NOON + time(), chance=random.Random(1), monotonic=time)
    broker = LocalBroker(clock=clock)
    async with Bus(LocalTransport(broker), clock) as bus, asyncio.TaskGroup() as group:
        made = FollowedWorld(bus, broker, group, **more)
        serving = group.create_task(bus.serve(made.placement(), asyncio.Event()))
        try:
            yield made
        finally:
            await made.kill_all()
            serving.cancel()

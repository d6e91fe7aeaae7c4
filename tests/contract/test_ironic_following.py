"""Following Ironic: notifications become reports to placement, in virtual time.

Replicas share the notifications, a clock jumps, and Ironic, its API or its broker is away.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.local import LocalBroker, LocalTransport
from bus.messages import InventoryReported
from bus.replication import PlacementChanged, ProviderChange
from bus.worker import Worker, answers, on_many
from ironic_sync.core.node import Place, from_rest
from ironic_sync.core.rule import report
from ironic_sync.core.selection import NodeSelection
from ironic_sync.worker import FollowedIronic, ironic_sync
from placement_worker.core.trees import Tree
from placement_worker.store.stored_trees import changes_between
from tests.support.fake_ironic import FakeIronic, fault, node_number
from tests.support.ironic_builders import a_notification
from tests.support.swept_ironic import ManualNotifications, PlacedTrees
from tests.support.virtual_time import in_virtual_time

FOLLOWED = NodeSelection(cell="c1")


NOON = 1_800_000_000.0


class FollowedWorld:
    def __init__(self, bus: Bus, broker: LocalBroker, group: asyncio.TaskGroup, **more: Any) -> None:
        self.ironic = FakeIronic()
        self.placed = PlacedTrees()
        self.ahead = 0.0  # seconds by which berth's wall clock is wrong
        self.replicas: list[ManualNotifications] = []
        self._loop = asyncio.get_running_loop()
        self._bus = bus
        self._broker = broker
        self._group = group
        self._lives: list[asyncio.Task[None]] = []
        self.clock = Clock(now=lambda: self.time, chance=random.Random(1), monotonic=self._loop.time)
        self._more: dict[str, Any] = {"sweep_seconds": 3600.0, "pages_per_second": 1e9, **more}
        self._number = 0

    @property
    def time(self) -> float:
        return NOON + self._loop.time()

    async def start(self) -> ManualNotifications:
        voice = ManualNotifications()
        clock = Clock(now=lambda: self.time + self.ahead, chance=random.Random(1), monotonic=self._loop.time)
        ironic = FollowedIronic(
            selection=FOLLOWED,
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

    async def change(
        self, receiver: ManualNotifications | None, number: int, event: str, **changes: Any
    ) -> None:
        await asyncio.sleep(3.0)
        self.ironic.now = int(self.time)
        self.ironic.change(number, **changes)
        if receiver is not None:
            await receiver.say(event, self.time, self.ironic.nodes[node_number(number)])

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
        return PlacementChanged(number=self._number, changes=tuple(changes))

    def reopen_by_hand(self, number: int) -> None:
        before = self.placed.trees[node_number(number)]
        node = from_rest(self.ironic.nodes[before.root] | {"maintenance": False})
        reply = report(node, Place(cell=before.cell, agent=before.agent), before.sequence + 1)
        assert reply is not None
        self.placed.report(reply)


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


SOON = 1.0  # virtual seconds


def with_nodes(world: FollowedWorld, count: int = 1) -> None:
    world.ironic.now = int(world.time)
    for number in range(1, count + 1):
        world.ironic.have(number)


async def with_three_nodes(world: FollowedWorld) -> ManualNotifications:
    with_nodes(world, 3)
    replica = await world.start()
    assert world.placed.open() == {1, 2, 3}
    return replica


@in_virtual_time
async def test_nodes_only_close_while_the_ironic_api_is_unreachable() -> None:
    async with followed() as world:
        with_nodes(world, 2)
        world.ironic.change(2, provision_state="cleaning")
        replica = await world.start()
        world.ironic.proxy = lambda request: fault(503, "away")
        await world.change(replica, 1, "maintenance_set.end", maintenance=True)
        await world.change(replica, 2, "provision_set.end", provision_state="available")
        assert await world.takes(1, open=False) < SOON
        assert not world.placed.is_open(2)
        world.ironic.proxy = lambda request: None
        assert await world.takes(2, open=True) < 20.0


@in_virtual_time
async def test_a_node_allocated_by_ironic_is_found() -> None:
    async with followed() as world:
        replica = await with_three_nodes(world)
        world.ironic.change(1, instance_uuid=node_number(99))
        reply = a_notification("x", world.time, {"node_uuid": None, "state": "allocating"})
        await replica.say_bytes(reply.replace(b"baremetal.node.x", b"baremetal.allocation.create.end"))
        assert await world.takes(1, open=False) < 10.0


def test_following_an_ironic_requires_a_publisher() -> None:
    with pytest.raises(TypeError, match="publish"):
        ironic_sync(FollowedIronic(selection=NodeSelection(cell="c1")))


# Without notifications


@pytest.mark.parametrize("nulls_first", [False, True], ids=["by what changed", "by reading everything"])
@in_virtual_time
async def test_changes_without_notifications_are_found_within_seconds(nulls_first: bool) -> None:
    async with followed(sweep_seconds=60.0, deaf_sweep_seconds=5.0) as world:
        world.ironic = FakeIronic(nulls_first=nulls_first)
        replica = await with_three_nodes(world)
        await world.change(replica, 2, "update.end", name="changed once")
        replica.disconnect()
        for maintenance in (True, False, True):
            await world.change(None, 1, "", maintenance=maintenance)
            assert await world.takes(1, open=not maintenance) < 6.0


@in_virtual_time
async def test_missed_changes_are_read_when_notifications_resume() -> None:
    async with followed(sweep_seconds=3600.0, deaf_sweep_seconds=3600.0) as world:
        replica = await with_three_nodes(world)
        for maintenance in (True, False, True):
            replica.disconnect()
            await world.change(None, 1, "", maintenance=maintenance)
            replica.reconnect()
            assert await world.takes(1, open=not maintenance) < 1.0


# Several replicas, and a clock that jumps


@in_virtual_time
async def test_changes_reported_by_another_replica_are_checked() -> None:
    async with followed() as world:
        with_nodes(world)
        a, b = await world.start(), await world.start()
        for receiver, maintenance in ((a, True), (b, False), (a, True), (b, False)):
            await world.change(receiver, 1, "maintenance_set.end", maintenance=maintenance)
            assert await world.takes(1, open=not maintenance) < SOON


@in_virtual_time
async def test_a_reconnected_replica_reads_the_reported_state_again() -> None:
    async with followed() as world:
        with_nodes(world)
        a = await world.start()
        await world.change(a, 1, "maintenance_set.end", maintenance=True)
        await world.takes(1, open=False)
        world.reopen_by_hand(1)
        world.ironic.proxy = lambda request: fault(503, "away")
        a.reconnect()
        await world.change(a, 1, "maintenance_set.end", maintenance=True)
        assert await world.takes(1, open=False) < SOON

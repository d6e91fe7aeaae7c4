"""Following Ironic with a real placement on the in-process bus: notifications become inventory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest

from bus import topics
from bus.clock import Clock, monotonic
from bus.delivery.runner import Bus
from bus.local import LocalBroker, LocalTransport
from bus.messages import NodeChanged
from bus.reports import ProviderReport
from bus.resources import FindProviders, Provider
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.worker import Worker
from ironic_sync import FollowedIronic, NodeSelection, ironic_sync
from ironic_sync.comparison import diff
from ironic_sync.core.known_state import KnownStateRules
from ironic_sync.core.node import IronicNode
from ironic_sync.following import Following
from ironic_sync.notifications import CLAIMABLE_SECONDS, EVENTS, REPORTED_SECONDS, SKIPPED
from ironic_sync.reader import Reader
from ironic_sync.survey import Survey
from ironic_sync.sweep import Sweep
from placement_worker import Placement, placement_worker
from tests.support.belief_world import Truth, recorded
from tests.support.fake_ironic import FakeIronic, fault, node_number
from tests.support.ironic_builders import PLACE, a_notification
from tests.support.swept_ironic import SaidByHand

SELECTION = NodeSelection(cell="cell1", agents={"cell1": "cell1-metal"})
SILENT = {"96-power-mismatch-recovery-silent", "104-allocation-create", "107-allocation-create-2"}
HOW: dict[str, Any] = {"pages_per_second": 1e9}


class BusWithPlacement:
    """A bus with a placement on it, and whatever else is served."""

    def __init__(self, bus: Bus, database: Database, stopping: asyncio.Event) -> None:
        self.bus = bus
        self.database = database
        self.find = bus.asker(topics.PROVIDERS)
        self._stopping = stopping

    async def serve(self, worker: Worker) -> None:
        await self.bus.serve(worker, self._stopping)

    async def has(self, uuid: str) -> Provider | None:
        asked = FindProviders(ids=(uuid,), parts=("inventories", "traits", "aggregates", "owner"))
        found = (await self.find(asked)).providers
        return found[0] if found and not found[0].gone else None

    async def is_open(self, uuid: str) -> bool:
        found = await self.has(uuid)
        return found is not None and all(inventory.reserved == 0 for inventory in found.inventories.values())

    async def until(self, met: Callable[[], Any], what: str = "it", seconds: float = 10.0) -> None:
        deadline = monotonic() + seconds
        while not await met():
            assert monotonic() < deadline, f"not within {seconds} s: {what}"
            await asyncio.sleep(0.005)


@asynccontextmanager
async def house() -> AsyncIterator[BusWithPlacement]:
    database = Database("sqlite+aiosqlite://")
    stopping = asyncio.Event()
    try:
        await migrate(database, "placement_worker")
        async with Bus(LocalTransport(LocalBroker())) as bus, asyncio.TaskGroup() as group:
            placement = Placement(database, Clock())
            group.create_task(bus.serve(placement_worker(placement, bus.publish, ("cell1",)), stopping))
            try:
                yield BusWithPlacement(bus, database, stopping)
            finally:
                stopping.set()
    finally:
        await database.close()


# A recorded Ironic


class RecordedIronic:
    def __init__(self) -> None:
        self.truth = Truth()
        self.now = 0.0

    async def node(self, uuid: str, fields: Sequence[str] | None = None) -> dict[str, Any] | None:
        return _raw(self.truth.at(uuid, self.now))

    async def nodes(self, **asked: Any) -> AsyncIterator[list[dict[str, Any]]]:
        yield [raw for _, node in self.truth.nodes(self.now) if (raw := _raw(node))]


def _raw(node: IronicNode | None) -> dict[str, Any] | None:
    return None if node is None else msgspec.to_builtins(node)


async def test_recorded_notifications_lead_to_the_documented_placement_state() -> None:
    ironic = RecordedIronic()
    clock = Clock(lambda: ironic.now, monotonic=lambda: ironic.now)
    async with house() as home, asyncio.TaskGroup() as group:
        reader = Reader(ironic, clock)
        rules = KnownStateRules(place=lambda node: PLACE, can_read=True)
        following = Following(rules, home.bus.publish, clock, reader.wish)
        survey = Survey(ironic, home.find, SELECTION, rules, following.moment)
        sweep = Sweep(survey, following.repair, clock, **HOW)
        reading = group.create_task(reader.run(following.moment, following.found))

        async def as_it_should_be(uuid: str) -> bool:
            node = ironic.truth.at(uuid, ironic.now)
            told = None if node is None else rules.report(node, PLACE)
            has = await home.has(uuid)
            if told is None:
                return has is None or node is not None  # of one without a class what is known stays
            return has is not None and _facts(has) == _facts(told.providers[0])

        for step in recorded():
            for message in step.messages:
                ironic.now = max(ironic.now, message.arrival)
                await following.handle([message.body.encode()])
            ironic.now = max(ironic.now, step.ended)
            if step.step in SILENT:
                await sweep.everything()
            for uuid in step.nodes:
                await home.until(partial(as_it_should_be, uuid), f"{uuid} after {step.step}")
        assert not (await diff(survey)).differences
        reading.cancel()


def _facts(provider: Provider | ProviderReport) -> tuple[Any, ...]:
    return provider.id, provider.name, provider.inventories, set(provider.traits), set(provider.aggregates)


# The worker


class FollowedCloud:
    def __init__(self, home: BusWithPlacement, *, can_read: bool = True, **more: Any) -> None:
        self.home = home
        self.ironic = FakeIronic()
        self.voice = SaidByHand()
        self.clock = Clock()
        self._can_read = can_read
        self._more = HOW | more

    def worker(self) -> Worker:
        ironic = FollowedIronic(
            selection=SELECTION,
            notifications=self.voice,  # type: ignore[arg-type]
            api=self.ironic.api(clock=self.clock) if self._can_read else None,
            **self._more,
        )
        return ironic_sync(ironic, self.home.bus.publish, self.home.find, clock=self.clock)

    async def change(self, number: int, event: str, **changes: Any) -> str:
        uuid = node_number(number)
        if uuid in self.ironic.nodes:
            self.ironic.change(number, **changes)
        else:
            self.ironic.have(number, **changes)
        await self.voice.say(event, self.clock.now(), self.ironic.nodes[uuid])
        return uuid


@asynccontextmanager
async def cloud(**more: Any) -> AsyncIterator[FollowedCloud]:
    async with house() as home, asyncio.TaskGroup() as group:
        made = FollowedCloud(home, **more)
        serving = group.create_task(home.serve(made.worker()))
        await made.voice.bound.wait()
        yield made
        serving.cancel()


def counted(metric: Any, **labels: str) -> float:
    for family in metric.collect():
        for sample in family.samples:
            if sample.name.endswith(("_total", "_count")) and sample.labels == labels:
                return float(sample.value)
    return 0.0


@pytest.mark.parametrize("can_read", [True, False], ids=["with an API", "without"])
async def test_a_node_opens_and_closes_with_its_notifications(can_read: bool) -> None:
    before = counted(CLAIMABLE_SECONDS), counted(REPORTED_SECONDS)
    async with cloud(can_read=can_read) as sky:
        uuid = await sky.change(1, "provision_set.start", provision_state="cleaning")
        await sky.home.until(lambda: sky.home.has(uuid))
        assert not await sky.home.is_open(uuid)
        await sky.change(1, "provision_set.end", provision_state="available")
        await sky.home.until(lambda: sky.home.is_open(uuid))

        async def seen() -> bool:
            return counted(CLAIMABLE_SECONDS) == before[0] + 1

        await sky.home.until(seen, "how long it took is known")
        await sky.change(1, "maintenance_set.end", maintenance=True)
        await sky.home.until(lambda: _not(sky.home.is_open(uuid)))
    assert counted(REPORTED_SECONDS) >= before[1] + 2


async def test_nodes_do_not_open_while_the_ironic_api_is_unreachable() -> None:
    async with cloud(sweep_seconds=3600) as sky:
        one = await sky.change(1, "provision_set.end", provision_state="available")
        await sky.home.until(lambda: sky.home.is_open(one))
        sky.ironic.proxy = lambda request: fault(503, "away")
        await sky.change(1, "maintenance_set.end", maintenance=True)
        other = await sky.change(2, "provision_set.start", provision_state="cleaning")
        await sky.change(2, "provision_set.end", provision_state="available")
        await sky.home.until(lambda: _not(sky.home.is_open(one)))
        await sky.home.until(lambda: sky.home.has(other))
        assert not await sky.home.is_open(other)
        sky.ironic.proxy = lambda request: None
        await sky.home.until(lambda: sky.home.is_open(other), seconds=20)


async def test_changes_before_the_start_are_found() -> None:
    async with house() as home:
        sky = FollowedCloud(home, sweep_seconds=3600)
        gone, taken, free = (sky.ironic.have(number) for number in (1, 2, 3))
        sky.ironic.change(3, maintenance=True)
        for _ in range(3):
            sky.ironic.have(10 + _)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(home.serve(sky.worker()))
            await home.until(lambda: home.is_open(gone))
            await home.until(lambda: home.is_open(taken))
            first.cancel()
        del sky.ironic.nodes[gone]
        sky.ironic.change(2, instance_uuid=node_number(99))
        sky.ironic.change(3, maintenance=False)
        sky.voice = SaidByHand()
        async with asyncio.TaskGroup() as group:
            second = group.create_task(home.serve(sky.worker()))
            await home.until(lambda: home.is_open(free))
            await home.until(lambda: _not(home.is_open(taken)))
            await home.until(lambda: _not(home.has(gone)))
            second.cancel()


async def test_a_gap_in_the_notifications_leads_to_a_full_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ironic_sync.sweep.SOONEST_SECONDS", 0.05)
    async with cloud(sweep_seconds=3600) as sky:
        nodes = [await sky.change(n, "provision_set.end", provision_state="available") for n in range(5)]
        for uuid in nodes:
            await sky.home.until(partial(sky.home.is_open, uuid))
        sky.ironic.change(1, maintenance=True)
        del sky.ironic.nodes[nodes[2]]
        sky.voice.was_interrupted()
        await sky.home.until(lambda: _not(sky.home.is_open(nodes[1])))
        await sky.home.until(lambda: _not(sky.home.has(nodes[2])))


async def test_a_node_allocated_by_ironic_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ironic_sync.sweep.SOONEST_SECONDS", 0.05)
    monkeypatch.setattr("ironic_sync.sweep.SETTLING_SECONDS", 0.05)
    async with cloud(sweep_seconds=3600) as sky:
        uuid = await sky.change(1, "provision_set.end", provision_state="available")
        await sky.home.until(lambda: sky.home.is_open(uuid))
        sky.ironic.change(1, instance_uuid=node_number(99))
        said = a_notification("x", sky.clock.now(), {"node_uuid": None, "state": "allocating"})
        await sky.voice.say_bytes(said.replace(b"baremetal.node.x", b"baremetal.allocation.create.end"))
        await sky.home.until(lambda: _not(sky.home.is_open(uuid)))


async def test_unreadable_and_foreign_notifications_are_counted() -> None:
    before = {reason: counted(SKIPPED, reason=reason) for reason in ("unreadable", "not a node")}
    asked = counted(EVENTS, event="update.start", outcome="asked")
    async with cloud(can_read=False) as sky:
        node = sky.ironic.nodes[sky.ironic.have(1)]
        now = sky.clock.now()
        port = a_notification("x", now, node).replace(b"baremetal.node.x", b"baremetal.port.create.end")
        bad = a_notification("update.end", now, node | {"traits": ["no trait"]})
        good = a_notification("provision_set.end", now, node)
        await sky.voice.say_bytes(
            b"\x00", b"{}", port, bad, a_notification("update.start", now, node), good, b"["
        )
        await sky.home.until(lambda: sky.home.is_open(node["uuid"]))
    assert counted(SKIPPED, reason="unreadable") == before["unreadable"] + 3
    assert counted(SKIPPED, reason="not a node") == before["not a node"] + 1
    assert counted(EVENTS, event="update.start", outcome="asked") == asked + 1


async def test_tools_and_ironic_may_speak_of_the_same_node() -> None:
    async with cloud(can_read=False) as sky:
        uuid = await sky.change(1, "provision_set.end", provision_state="available")
        await sky.home.until(lambda: sky.home.is_open(uuid))
        tool = NodeChanged(
            event="set", node=uuid, at=sky.clock.now(), cell="cell1", agent="cell1-metal",
            resource_class="gold", provision_state="manageable",
        )  # fmt: skip
        await sky.home.bus.publish(tool)
        await sky.home.until(lambda: _not(sky.home.is_open(uuid)))
        await sky.change(1, "power_set.end", power_state="power on")
        await sky.home.until(lambda: sky.home.is_open(uuid))


def test_following_an_ironic_requires_a_publisher() -> None:
    with pytest.raises(TypeError, match="publish"):
        ironic_sync(FollowedIronic(selection=SELECTION))


async def _not(question: Any) -> bool:
    return not await question

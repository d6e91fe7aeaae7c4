"""The reports of a simulated agent after orders that are repeated, late, or interrupted by a crash."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from bus.delivery.runner import Bus, Listener
from bus.local import LocalBroker, LocalTransport
from bus.messages import AgentReported, InventoryReported
from bus.topics import AGENT_REPORT, HOST_REPORTED, INVENTORY_REPORTED, IRONIC_NODE
from bus.worker import Worker
from compute_sim.core.faults import CrashPlan, Durations, FaultPlan, SimOptions
from compute_sim.guests import AgentDisk
from compute_sim.machines import SimAgent, SimHost, fleet
from compute_sim.worker import compute_sim
from tests.support.buses import queues_of
from tests.support.conductor_builders import CELL, a_build_order, a_destroy_order, a_placed, an_agent_report
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import DEADLINE, in_time, until

ONE = a_placed(1)
FIRST = a_build_order(ONE, 1)
SLOW = FaultPlan(durations=Durations.parse("constant:60"))
HANGS = FaultPlan(hang=1.0)


@pytest.fixture(autouse=True)
def _it_announces_its_hosts_again_only_for_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compute_sim.reporting.FIRST_GAP", 10 * DEADLINE)


def hosts(number: int = 1) -> list[SimHost]:
    (agent,) = fleet(cells=1, hosts=number)
    return list(agent.hosts)


def an_agent(faults: FaultPlan | None = None, crashes: CrashPlan | None = None, count: int = 1) -> Worker:
    return compute_sim(
        SimAgent("agent0", CELL, tuple(hosts(count))),
        SimOptions(faults=faults or FaultPlan(), crashes=crashes or CrashPlan(), period=0.05),
    )


@dataclass
class AgentWorld:
    bus: Bus
    broker: LocalBroker
    reports: Listener[AgentReported]
    inventories: Listener[InventoryReported]

    @asynccontextmanager
    async def serving(self, worker: Worker) -> AsyncIterator[None]:
        stopping = asyncio.Event()
        async with Bus(LocalTransport(self.broker)) as bus, asyncio.TaskGroup() as group:
            await bus.transport.declare(*queues_of(worker))
            group.create_task(bus.serve(worker, stopping, drain=0.0))
            try:
                yield
            finally:
                stopping.set()

    def waiting(self) -> int:
        return sum(
            len(queue.items) for name, queue in self.broker.queues.items() if name.startswith("agent.")
        )


@pytest.fixture
async def world() -> AsyncIterator[AgentWorld]:
    broker = LocalBroker()
    async with Bus(LocalTransport(broker)) as bus:
        reports = await bus.listen(AGENT_REPORT.at(cell=CELL))
        yield AgentWorld(bus, broker, reports, await bus.listen(INVENTORY_REPORTED.at()))


async def silence(listener: Listener[AgentReported]) -> bool:
    for _ in range(200):
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await listener.get()
    return True


@pytest.mark.parametrize(
    ("faults", "outcome", "retry"),
    [
        (FaultPlan(), "built", True),
        (FaultPlan(reschedule=1.0), "failed", True),
        (FaultPlan(abort=1.0), "failed", False),
    ],
)
async def test_an_order_is_built_or_fails_as_planned(
    world: AgentWorld, faults: FaultPlan, outcome: str, retry: bool
) -> None:
    async with world.serving(an_agent(faults)):
        await world.bus.publish(FIRST)
        message = await in_time(world.reports.get())
        assert bool(message.cause) == (outcome == "failed")
        # no guest remains: the agent removes it after a failure
        assert message == an_agent_report(FIRST, outcome, retry=retry, cause=message.cause)


async def test_an_order_that_comes_twice_is_built_once_and_reported_the_same(world: AgentWorld) -> None:
    plan = FaultPlan(durations=Durations.parse("constant:0.05"))
    async with world.serving(an_agent(plan)):
        await world.bus.publish(FIRST, FIRST, FIRST)
        message = await in_time(world.reports.get())
        assert await silence(world.reports)
        await world.bus.publish(FIRST)
        assert await in_time(world.reports.get()) == message == an_agent_report(FIRST, "built")
    assert world.waiting() == 0


async def test_an_order_stays_on_the_queue_until_its_build_has_ended(world: AgentWorld) -> None:
    async with world.serving(an_agent(SLOW)):
        await world.bus.publish(FIRST)
        await until(lambda: world.waiting() == 0, seconds=DEADLINE)
    assert world.waiting() == 1
    async with world.serving(an_agent()):  # restarted after a kill
        assert await in_time(world.reports.get()) == an_agent_report(FIRST, "built")
    assert world.waiting() == 0


@pytest.mark.parametrize("faults", [SLOW, HANGS])
async def test_a_destroy_stops_a_build_and_voids_its_order(world: AgentWorld, faults: FaultPlan) -> None:
    async with world.serving(an_agent(faults)):
        await world.bus.publish(FIRST)
        await until(lambda: world.waiting() == 0, seconds=DEADLINE)
        await world.bus.publish(a_destroy_order(ONE, 1))
        assert await in_time(world.reports.get()) == an_agent_report(FIRST, "destroyed")
        assert await silence(world.reports)
        await world.bus.publish(FIRST)
        assert await in_time(world.reports.get()) == an_agent_report(FIRST, "destroyed")


async def test_builds_interrupted_by_a_power_failure_are_reported_as_failed(world: AgentWorld) -> None:
    crashes = CrashPlan(seed=1, orders=2, away=0.1)
    crash_at = crashes.next_after("agent0", 0)
    orders = [a_build_order(a_placed(number)) for number in range(crash_at)]
    worker = an_agent(SLOW, crashes)
    async with world.serving(worker):
        await in_time(world.inventories.get())
        await world.bus.publish(*orders)
        lost = [await in_time(world.reports.get()) for _ in orders]
        assert {report.build for report in lost} == {order.build for order in orders}
        assert {(report.outcome, report.retry) for report in lost} == {("failed", True)}
        assert all(report.leftover for report in lost)  # the started guest remains
        assert {report.cause for report in lost} == {"the agent lost power while it was building"}
        await in_time(world.inventories.get())
        await world.bus.publish(orders[0])
        assert await in_time(world.reports.get()) in lost


@in_virtual_time
async def test_a_hanging_build_is_reported_as_failed_and_its_guest_remains() -> None:
    broker, disk = LocalBroker(), AgentDisk()
    agent = compute_sim(SimAgent("agent0", CELL, tuple(hosts())), SimOptions(faults=HANGS), disk=disk)
    async with Bus(LocalTransport(broker)) as bus:
        reports = await bus.listen(AGENT_REPORT.at(cell=CELL))
        async with AgentWorld(bus, broker, reports, await bus.listen(INVENTORY_REPORTED.at())).serving(agent):
            await asyncio.sleep(1.0)
            await bus.publish(FIRST)
            report = await reports.get()
            assert (report.outcome, report.retry, report.leftover) == ("failed", True, True)
            assert disk.guests == {ONE.build: {1: FIRST.root}}
            await bus.publish(a_destroy_order(ONE, 1))
            assert await reports.get() == an_agent_report(FIRST, "destroyed")
            assert disk.guests == {}


async def test_an_order_that_comes_while_the_power_is_off_waits_for_it(world: AgentWorld) -> None:
    crashes = CrashPlan(seed=5, orders=20, away=0.1)
    crash_at = crashes.next_after("agent0", 0)
    orders = [a_build_order(a_placed(number)) for number in range(crash_at + 1)]
    async with world.serving(an_agent(crashes=crashes)):
        await world.bus.publish(*orders)
        reply = {report.build: report async for report in _some(world.reports, len(orders))}
    assert [reply[order.build].outcome for order in orders] == [
        *["built"] * (crash_at - 1),
        "failed",
        "built",
    ]


async def _some(listener: Listener[AgentReported], count: int) -> AsyncIterator[AgentReported]:
    for _ in range(count):
        yield await in_time(listener.get())


async def test_each_run_of_an_agent_has_a_unique_name(world: AgentWorld) -> None:
    beats, runs = await world.bus.listen(HOST_REPORTED.at()), set()
    for _ in range(2):
        async with world.serving(an_agent()), asyncio.timeout(DEADLINE):
            one, two = [await beats.get() for _ in range(2)]
        assert (one.run, one.sequence < two.sequence) == (two.run, True)
        runs.add(one.run)
    assert len(runs) == 2 and "" not in runs


async def test_a_bare_metal_node_is_reported_like_an_ironic_node(world: AgentWorld) -> None:
    node = SimHost("6f3f0c9e-8f5b-4c1e-9d57-2b8a5c0e7a11", "metal1", {}, metal="baremetal")
    nodes = await world.bus.listen(IRONIC_NODE.at())
    async with world.serving(compute_sim(SimAgent("agent0", CELL, (node,)))):
        message = await in_time(nodes.get())
    assert (message.node, message.provision_state, message.at) == (node.root, "available", 1.0)
    assert (message.cell, message.agent, message.resource_class) == (CELL, "agent0", "baremetal")

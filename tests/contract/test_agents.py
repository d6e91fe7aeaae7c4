"""Orders of a simulated agent: one that a kill interrupts, and one that is destroyed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from bus.delivery.runner import Bus, Listener
from bus.local import LocalBroker, LocalTransport
from bus.messages import AgentReported
from bus.topics import AGENT_REPORT
from bus.worker import Worker
from compute_sim.core.faults import Durations, FaultPlan, SimOptions
from compute_sim.machines import SimAgent, fleet
from compute_sim.worker import compute_sim
from tests.support.buses import queues_of
from tests.support.conductor_builders import CELL, a_build_order, a_destroy_order, a_placed, an_agent_report
from tests.support.waiting import DEADLINE, in_time, until

ONE = a_placed(1)
FIRST = a_build_order(ONE, 1)
SLOW = FaultPlan(durations=Durations.parse("constant:60"))


@pytest.fixture(autouse=True)
def _it_announces_its_hosts_again_only_for_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compute_sim.reporting.FIRST_GAP", 10 * DEADLINE)


def an_agent(faults: FaultPlan) -> Worker:
    (agent,) = fleet(cells=1, hosts=1)
    return compute_sim(SimAgent("agent0", CELL, agent.hosts), SimOptions(faults=faults, period=0.05))


@dataclass
class AgentWorld:
    bus: Bus
    broker: LocalBroker
    reports: Listener[AgentReported]

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
        yield AgentWorld(bus, broker, await bus.listen(AGENT_REPORT.at(cell=CELL)))


async def silence(listener: Listener[AgentReported]) -> bool:
    for _ in range(200):
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await listener.get()
    return True


async def test_an_order_stays_on_the_queue_until_its_build_has_ended(world: AgentWorld) -> None:
    async with world.serving(an_agent(SLOW)):
        await world.bus.publish(FIRST)
        await until(lambda: world.waiting() == 0, seconds=DEADLINE)
    assert world.waiting() == 1
    async with world.serving(an_agent(FaultPlan())):  # restarted after a kill
        assert await in_time(world.reports.get()) == an_agent_report(FIRST, "built")
    assert world.waiting() == 0


async def test_a_destroy_stops_a_build_and_voids_its_order(world: AgentWorld) -> None:
    async with world.serving(an_agent(SLOW)):
        await world.bus.publish(FIRST)
        await until(lambda: world.waiting() == 0, seconds=DEADLINE)
        await world.bus.publish(a_destroy_order(ONE, 1))
        assert await in_time(world.reports.get()) == an_agent_report(FIRST, "destroyed")
        assert await silence(world.reports)
        await world.bus.publish(FIRST)
        assert await in_time(world.reports.get()) == an_agent_report(FIRST, "destroyed")

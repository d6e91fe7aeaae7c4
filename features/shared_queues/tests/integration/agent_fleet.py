"""Many simulated agents in few processes, each with its own connection to the broker.

A process is `berth run compute` for all agents of some cells. A thousand agents as processes would need
60 GB of memory.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from berth import composition, services, simulated_agents, worker_roles
from berth.kit import Settings
from berth.services import Supervisor
from bus import topics
from bus.delivery.runner import Bus
from bus.worker import Worker
from compute_sim.extension import AgentDisk, SimOptions
from compute_sim.testing import Durations, FaultPlan, GuestFile, SimAgent, compute_sim
from features.shared_queues.messages import HeartbeatRelayed
from features.shared_queues.relayed_orders import with_shared_queues
from tests.support.feature_parts import agent_parts

MUTE = "BERTH_TESTS_MUTE"  # environment variable: name of the agent that sends no heartbeats
PER_CELL = "BERTH_TESTS_AGENTS"  # environment variable: number of agents in each cell
AT_ONCE = 20  # connections that are opened concurrently


def fleet_settings(settings: Settings) -> Settings:
    return settings.having(simulator={"agents_per_cell": int(os.environ[PER_CELL])})


class FleetSupervisor(Supervisor):
    """Starts the agents of some cells as one process."""

    @staticmethod
    def command(together: Sequence[worker_roles.Role]) -> Sequence[str]:
        words, agents = Supervisor.command(together), together[0].worker == "compute"
        return [__name__ if word == "berth" and agents else word for word in words]


async def _serve(
    together: Sequence[worker_roles.Role], settings: Settings, way: object, stopping: asyncio.Event
) -> None:
    cells = {role.cell for role in together}
    opening = asyncio.Semaphore(AT_ONCE)
    async with asyncio.TaskGroup() as group:
        for agent in simulated_agents.agents(fleet_settings(settings)):
            if agent.cell in cells:
                group.create_task(_live(agent, settings, opening, stopping))


async def _live(
    agent: SimAgent, settings: Settings, opening: asyncio.Semaphore, stopping: asyncio.Event
) -> None:
    disk = AgentDisk(file=GuestFile(simulated_agents.guest_file(settings, agent.agent)))
    try:
        async with opening:
            bus = await Bus(
                composition.transport(settings, f"compute.{agent.cell}.{agent.agent}")
            ).__aenter__()
        try:
            await bus.serve(_worker(agent, settings, disk, bus), stopping)
        finally:
            await bus.__aexit__(None, None, None)
    finally:
        disk.close()


def _worker(agent: SimAgent, settings: Settings, disk: AgentDisk, bus: Bus) -> Worker:
    faults = FaultPlan(seed=1, durations=Durations.parse(settings.simulator.build_time))
    options = SimOptions(faults=faults, period=settings.agents.heartbeat)
    providers = bus.asker(topics.CELL_PROVIDERS, timeout=30.0)
    allocations = bus.asker(topics.CELL_ALLOCATIONS, timeout=30.0)
    worker = compute_sim(
        agent,
        options,
        clock=bus.clock,
        disk=disk,
        providers=providers,
        allocations=allocations,
        parts=agent_parts(options),
    )
    worker = with_shared_queues(worker, bus.publish, bus.clock)
    if agent.agent == os.environ.get(MUTE):
        events = [row for row in worker.timers if HeartbeatRelayed not in row.emits]
        return replace(worker, timers=events)
    return worker


if __name__ == "__main__":
    from berth.__main__ import main

    services.composition.serve = _serve  # type: ignore[attr-defined]
    sys.argv = ["berth", *sys.argv[1:]]
    main()

"""A cloud in virtual time with one cell, whose instances are deleted."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from berth.features import packages
from bus import topics
from bus.delivery.runner import Bus
from bus.local import LocalTransport
from bus.sql.database import Database
from bus.sql.migrations import migrate
from cell_conductor import cell_conductor
from compute_sim.core.faults import Durations, FaultPlan, SimOptions
from compute_sim.machines import Hardware, fleet
from compute_sim.worker import compute_sim
from tests.support.ids import uid
from tests.support.waiting_world import WaitingWorld, waiting_world

BUILD = uid(1000, "b")


@asynccontextmanager
async def a_cloud(
    *schedulers: str, takes: float = 1.0
) -> AsyncIterator[tuple[WaitingWorld, Callable[[str], None]]]:
    builds = Database("sqlite+aiosqlite://", inline=True)
    await migrate(builds, *packages("conductor"))
    async with waiting_world(*schedulers) as world:
        [agent] = fleet(("c1",), 1, hardware=Hardware(vcpus=8, memory_mb=8192, disk_gb=100, vcpu_ratio=1.0))
        plan = FaultPlan(seed=1, durations=Durations.parse(f"exponential:{takes}"))

        async def live(make: Any) -> None:
            async with Bus(LocalTransport(world.broker), world.clock) as bus:
                await bus.serve(make(bus), asyncio.Event())

        def start(name: str) -> None:
            world.lives[name] = world.group.create_task(live(makes[name]))

        makes: dict[str, Any] = {
            "conductor": lambda bus: cell_conductor(
                "c1",
                builds,
                bus.asker_of_many(topics.CELL_CLAIM),
                bus.asker_of_many(topics.CELL_RELEASE),
                clock=world.clock,
            ),
            "agent": lambda bus: compute_sim(agent, SimOptions(faults=plan), clock=world.clock),
        }
        for name in makes:
            start(name)
        await asyncio.sleep(1.0)
        yield world, start

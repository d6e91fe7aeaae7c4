"""A simulated Ironic at a port of loopback: nodes of every kind that a board of them shows apart."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bus.clock import Clock
from bus.http import listen
from compute_sim.ironic import Simulation, enrolled


@asynccontextmanager
async def a_served_ironic() -> AsyncIterator[Simulation]:
    nodes = enrolled(5, now=Clock().now())
    nodes[1].maintenance, nodes[1].maintenance_reason = True, "a fan"
    nodes[2].provision_state, nodes[2].last_error = "clean failed", "no disk"
    nodes[3].provision_state = "manageable"
    simulation = Simulation(nodes, listener=listen("127.0.0.1:0"))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(simulation.run())
        try:
            yield simulation
        finally:
            running.cancel()

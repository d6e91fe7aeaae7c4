"""The simulated Ironic's API, and a client before it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from compute_sim.ironic import Simulation, enrolled
from tests.support.simulated_ironic import INSTANCE, NOW

NEWEST = {"X-OpenStack-Ironic-API-Version": "1.115"}
ALICE = "metal00001"


@asynccontextmanager
async def client_of(sim: Simulation, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=sim.app)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sim.run())
        async with httpx.AsyncClient(
            transport=transport, base_url="http://ironic.test", headers={**NEWEST, **headers}
        ) as client:
            yield client
        task.cancel()


def a_simulated_ironic() -> Simulation:
    nodes = enrolled(25, now=NOW, conductor_groups=("", "rack1"), resource_classes=("baremetal", "gold"))
    for number, node in enumerate(nodes):
        node.shard = f"s{number % 3}" if number % 3 else None
        node.owner = "alice" if number % 5 == 0 else None
    nodes[3].maintenance = True
    nodes[4].instance_uuid = INSTANCE
    nodes[5].provision_state = "manageable"
    return Simulation(nodes)


def fault_of(response: httpx.Response) -> str:
    """The sentence inside the JSON inside the JSON."""
    assert list(response.json()) == ["error_message"]
    fault = json.loads(response.json()["error_message"])
    assert (fault["faultcode"], fault["debuginfo"]) == ("Client", None)
    return str(fault["faultstring"])


async def read_until(
    client: httpx.AsyncClient, path: str, check: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            told: dict[str, Any] = (await client.get(path)).json()
            if check(told):
                return told
            await asyncio.sleep(0)  # an application in the same loop answers without giving it a turn


async def in_state(client: httpx.AsyncClient, node: str, state: str) -> dict[str, Any]:
    return await read_until(client, f"/v1/nodes/{node}", lambda told: told["provision_state"] == state)


async def names(client: httpx.AsyncClient, query: str) -> list[str]:
    return [node["name"][-2:] for node in (await client.get(f"/v1/nodes?{query}")).json()["nodes"]]

"""Requests that wait, on the real clock: embedded, and on services while the scheduler is killed."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import process_time

import pytest

from berth import worker_roles
from berth.commands.run import ready
from berth.kit import Settings, publish
from berth.services import embedded
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.ironic import NodeChanged
from bus.messages import BuildPlaced, BuildRequested
from bus.queries import FindWaiting
from bus.requests import ResourceGroup
from bus.resources import FindProviders
from tests.support.ids import uid
from tests.support.scheduler_builders import METAL, a_request
from tests.support.waiting import receive_all, until

pytestmark = pytest.mark.slow

NODES, REQUESTS = 100, 200


class Metal:
    def __init__(self, bus: Bus, settings: Settings) -> None:
        self.bus = bus
        self.agent = worker_roles.metal_agent(settings, "c1")
        self.placed: list[BuildPlaced] = []
        self.clock = Clock()

    async def node(self, number: int, state: str) -> None:
        await publish(
            self.bus,
            NodeChanged(
                event="provision_set",
                node=uid(number, "d"),
                name=f"node-{number:03}",
                at=self.clock.now(),
                cell="c1",
                agent=self.agent,
                resource_class="baremetal",
                provision_state=state,
            ),
        )

    async def all_known(self, several: int) -> None:
        wanted = FindProviders(like=ResourceGroup(resources={"CUSTOM_BAREMETAL": 1}), parts=())
        every = FindProviders(parts=("inventories",))

        async def known() -> bool:
            found = (await self.bus.asker(topics.PROVIDERS)(every)).providers
            open_ = (await self.bus.asker(topics.PROVIDERS)(wanted)).providers
            return (
                sum("CUSTOM_BAREMETAL" in provider.inventories for provider in found) >= several and not open_
            )

        await until(known, "the nodes are known")

    async def waiting(self) -> int:
        return (await self.bus.asker(topics.WAITING)(FindWaiting(limit=1))).count

    async def ask(self, numbers: range) -> None:
        for number in numbers:
            await publish(self.bus, a_metal_request(number))

    async def hear(self) -> None:
        listener = await self.bus.listen(topics.BUILD_PLACED.at(cell="c1"))
        await receive_all(listener, self.placed.append)


def a_metal_request(number: int) -> BuildRequested:
    return a_request(number, flavor=METAL, wait="30m")


@asynccontextmanager
async def listening(bus: Bus, settings: Settings) -> AsyncIterator[Metal]:
    metal = Metal(bus, settings)
    async with asyncio.TaskGroup() as group:
        ears = group.create_task(metal.hear())
        try:
            yield metal
        finally:
            ears.cancel()


async def test_each_of_200_takes_the_node_that_becomes_free_within_100_ms(tmp_path: Path) -> None:
    settings = Settings().having(
        cells=("c1",),
        simulator={"hosts": 2, "build_time": "constant:0.01"},
        state_dir=str(tmp_path / "state"),
    )
    async with embedded(settings) as berth, listening(berth.bus, settings) as metal:
        await ready(berth.bus, settings)
        for number in range(NODES):
            await metal.node(number, "cleaning")
        await metal.all_known(NODES)
        await metal.ask(range(1, REQUESTS + 1))

        async def all_wait() -> bool:
            return await metal.waiting() == REQUESTS

        await until(all_wait, "all wait")
        order = random.Random(1).sample(range(NODES), NODES)
        work = []
        for count, number in enumerate(order, 1):
            spent = process_time()
            await metal.node(number, "available")
            await until(lambda count=count: len(metal.placed) >= count, "it is taken")  # type: ignore[misc]
            work.append(process_time() - spent)
        assert [placed.chosen.root for placed in metal.placed] == [uid(number, "d") for number in order]
        assert [placed.request for placed in metal.placed] == [uid(n, "a") for n in range(1, NODES + 1)]
        assert sorted(work)[NODES // 2] < 0.1

        async def the_others_wait() -> bool:
            return await metal.waiting() == REQUESTS - NODES

        await until(the_others_wait, "the others wait")

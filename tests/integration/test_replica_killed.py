"""A scheduler without placement, at its start and after both stopped: no build is lost or refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from rich.console import Console

from berth import wiring
from berth.commands.builds import boot_request
from berth.commands.run import hosts_known, migrate_all
from berth.settings import Settings
from berth.wiring import Role
from bus.delivery.runner import Bus
from bus.protocol import QueueSpec
from bus.topics import BUILD_ENDED, BUILD_UNPLACEABLE
from tests.integration.test_crashes import load_through
from tests.support.berth_processes import Running

pytestmark = [pytest.mark.services, pytest.mark.slow]

DEADLINE = 150.0
BUILDS = 5


@pytest.fixture
def settings(amqp_url: str, database_url: str, bus_name: str) -> Settings:
    return Settings().having(
        amqp_url=amqp_url,
        database_url=database_url,
        exchange=bus_name,
        cells=("c1", "c2"),
        hosts=60,
        build_time="exponential:0.3",
        build_timeout=15.0,
        heartbeat=2.0,
    )


@asynccontextmanager
async def served(settings: Settings, *roles: Role) -> AsyncIterator[None]:
    told = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for role in roles:
            way = wiring.transport(settings, str(role), role.cell)
            group.create_task(wiring.serve([role], settings, way, told))
        try:
            yield
        finally:
            told.set()


async def test_a_scheduler_that_is_there_before_placement_waits_for_it(settings: Settings) -> None:
    settings = settings.having(cells=("c1",))
    await migrate_all(settings, Console(quiet=True))
    conductor, compute, placement = Role("conductor", "c1"), Role("compute", "c1"), Role("placement")
    async with asyncio.timeout(DEADLINE), Bus(wiring.transport(settings, "client")) as client:
        ended, refused = await client.listen(BUILD_ENDED.at()), await client.listen(BUILD_UNPLACEABLE.at())
        async with served(settings, conductor, compute):
            async with served(settings, placement):
                await hosts_known(client, settings)
            async with served(settings, Role("scheduler")):
                await client.transport.declare(QueueSpec("scheduler:build.requested", ("build.requested",)))
                for _ in range(BUILDS):
                    await client.publish(boot_request(1, 512, 1, "small", (), 1, "", ""))
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(2.0):
                        await refused.get()
                async with served(settings, placement):
                    ends = [await ended.get() for _ in range(BUILDS)]
    assert {end.status for end in ends} == {"active"}


@pytest.mark.soak
async def test_placement_and_the_scheduler_killed_together_cost_no_build(settings: Settings) -> None:
    async def trouble(berth: Running) -> None:
        for _ in range(2):
            async with asyncio.TaskGroup() as group:
                group.create_task(berth.kill("placement"))
                group.create_task(berth.kill("scheduler"))
            await asyncio.sleep(1.5)

    _, berth = await load_through(settings, trouble)
    assert berth.starts()["scheduler"] == berth.starts()["placement"] == 3

"""A real Nova without a nova-scheduler, for which berth schedules, for tests that stop and kill workers."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from deploy.nova import HostCapacity, NovaOptions, NovaRegion, find_nova, running_nova
from deploy.nova_client import wait_until
from deploy.nova_scheduling import BerthOnRabbitMQ, BerthWorker, berth_scheduling
from deploy.servers import find_binaries
from features.nova.tests.real.checks import SECONDS
from tests.support.servers import installed

CONDUCTORS = 3  # processes that nova-conductor forks
ENDS = ("ACTIVE", "ERROR")


@dataclass
class ScheduledRegion:
    region: NovaRegion
    berth: BerthOnRabbitMQ
    workers: dict[str, BerthWorker]


@asynccontextmanager
async def a_scheduled_region(*, has_mariadb: bool = False) -> AsyncIterator[ScheduledRegion]:
    """Run a region with four hosts and a conductor of several processes. Its databases are in PostgreSQL or
    MariaDB, berth's in PostgreSQL.
    """
    installed(find_binaries)
    installed(find_nova)
    berth = BerthOnRabbitMQ()
    capacity = HostCapacity(vcpus=64, memory_mb=65536, disk_gb=1000)
    options = NovaOptions(
        hosts=4, has_scheduler=False, capacity=capacity, has_mariadb=has_mariadb,
        sections={"conductor": {"workers": CONDUCTORS}},
    )  # fmt: skip
    async with (
        running_nova(options, placement=berth.placement) as region,
        berth_scheduling(region, {"nova_conf": str(region.configuration("api"))}) as workers,
    ):
        yield ScheduledRegion(region, berth, workers)


async def all_ended(region: NovaRegion, servers: list[str]) -> Counter[str]:
    """Wait until every server is active or in error, and return how many are which."""
    found: Counter[str] = Counter()

    async def have_ended() -> bool:
        status = {server["id"]: server["status"] for server in await region.nova.servers()}
        found.clear()
        found.update(status.get(server, "deleted") for server in servers)
        return set(found) <= set(ENDS)

    await wait_until(have_ended, f"{len(servers)} servers have ended", 8 * SECONDS)
    return found

"""A world in which requests wait for the quota of their project."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bus.reports import Inventory
from bus.requests import Flavor
from features.quotas.messages import EDIT_QUOTA, QuotaEditRequested, SetQuota
from tests.support.scheduler_builders import SMALL
from tests.support.waiting_world import WaitingWorld, waiting_world

CAPACITY = {"VCPU": Inventory(total=64), "MEMORY_MB": Inventory(total=65536), "DISK_GB": Inventory(total=800)}
SOON = 0.5  # virtual seconds, less than the periods of the heartbeat and of the slow check


@asynccontextmanager
async def a_world(*schedulers: str, **limits: Any) -> AsyncIterator[WaitingWorld]:
    """Run schedulers with a host with much free capacity, and with limits of project p1."""
    async with waiting_world(*schedulers) as world:
        await world.report(1, CAPACITY)
        await limit(world, **limits)
        yield world


async def limit(world: WaitingWorld, project: str = "p1", **limits: int) -> None:
    edit = SetQuota(project=project, limits=limits)
    await world.bus.asker(EDIT_QUOTA)(QuotaEditRequested(edit=edit))


async def boot(world: WaitingWorld, number: int, flavor: Flavor = SMALL, **fields: object) -> str:
    return await world.ask(number, flavor=flavor, **{"project": "p1", **fields})

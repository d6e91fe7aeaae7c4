"""A whole berth on real services in the process of the test: cheap, and ended as abruptly as one likes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from berth import wiring, worker_roles
from berth.commands.run import ready
from berth.settings import Settings
from bus.delivery.runner import Bus

_WITHOUT = ("ironic", "control-room")  # which have no part in a boot

Who = tuple[str, str]  # a worker, and its cell


@asynccontextmanager
async def in_one_process(settings: Settings, workers: Sequence[Who] | None = None) -> AsyncIterator[Bus]:
    if workers is None:
        everybody = [(role.worker, role.cell) for role in worker_roles.roles(settings)]
        workers = [one for one in everybody if one[0] not in _WITHOUT]
    async with joined(settings, workers), Bus(wiring.transport(settings, "test")) as bus:
        await ready(bus, settings)
        yield bus


@asynccontextmanager
async def joined(settings: Settings, workers: Sequence[Who]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        serving = [
            group.create_task(
                wiring.serve([role], settings, wiring.way_of([role], settings), asyncio.Event())
            )
            for role in (worker_roles.Role(*worker) for worker in workers)
        ]
        try:
            yield
        finally:
            for task in serving:
                task.cancel()

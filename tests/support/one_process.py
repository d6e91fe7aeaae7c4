"""A whole berth on real services in the process of the test: cheap, and ended as abruptly as one likes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from berth import wiring
from berth.commands.run import ready
from berth.settings import Settings
from bus.delivery.runner import Bus

WITHOUT = ("ironic", "control-room")  # which have no part in a boot


@asynccontextmanager
async def in_one_process(settings: Settings) -> AsyncIterator[Bus]:
    """A client's bus beside its workers. When it is left they end as by a crash: in the middle of it all."""
    async with asyncio.TaskGroup() as group:
        serving = [
            group.create_task(
                wiring.serve([role], settings, wiring.transport(settings, str(role)), asyncio.Event())
            )
            for role in wiring.roles(settings)
            if role.worker not in WITHOUT
        ]
        try:
            async with Bus(wiring.transport(settings, "test")) as bus:
                await ready(bus, settings)
                yield bus
        finally:
            for task in serving:
                task.cancel()

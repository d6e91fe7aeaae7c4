"""A lease on all bare-metal nodes that does not end, for benchmarks and tests with a single agent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bus.clock import Clock
from bus.errors import Unavailable
from bus.leases import LeaseAnswered, LeaseAsked
from ironic_sync.agent.lease import NodeLease, Standing


class PermanentLease(NodeLease):
    """Permits an agent to change every bare-metal node, without a query to the cell's conductor."""

    def __init__(self, agent: str, cell: str) -> None:
        super().__init__(agent, agent, cell, _refuse, Clock())

    def standing(self, root: str, epoch: int, since: float) -> Standing:
        return "ours"

    def good(self) -> bool:
        return True

    @asynccontextmanager
    async def writing(self, root: str, epoch: int) -> AsyncIterator[None]:
        yield

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def leave(self) -> None:
        pass


async def _refuse(asked: LeaseAsked) -> LeaseAnswered:
    raise Unavailable("a permanent lease is not renewed")

"""A region to which clients with a role send their acts through a scheduler."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from berth.kit.testing import packages
from bus import topics
from bus.delivery.recording import RecordingBus
from bus.local import LocalBroker, LocalTransport
from bus.queries import FindInstances, InstancesFound
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.worker import Answers, Worker, answers
from features.clients.messages import CLIENT_RELAY, RegisteredClient
from features.clients.operator_requests import OperatorRequests
from features.clients.relayed_bus import RelayedBus
from features.clients.store import bind
from tests.support.acting_region import ActingRegion
from tests.support.buses import serving


class RelayedRegion(ActingRegion):
    """A region that receives the acts of clients through a scheduler."""

    def __init__(self, bus: RecordingBus, database: Database) -> None:
        super().__init__()
        self.intake = OperatorRequests(database, bus.publish, bus.asker, bus.clock)

    async def instances(self, question: FindInstances) -> InstancesFound:
        return InstancesFound(instances=(), last=question.project)

    def worker(self, *further: Answers) -> Worker:
        return super().worker(
            answers(CLIENT_RELAY, self.intake.relay, client="*"),
            answers(topics.FIND_INSTANCES, self.instances, cell="c1"),
            *further,
        )


@asynccontextmanager
async def a_client(
    role: Any, *workers: Worker, **limits: tuple[str, ...]
) -> AsyncIterator[tuple[RelayedBus, RelayedRegion]]:
    database, broker = Database("sqlite+aiosqlite://", inline=True), LocalBroker()
    await migrate(database, *packages("scheduler"))
    limits = {"projects": (), **limits}
    async with database.write() as tx:
        await bind(tx, RegisteredClient(name="ann", role=role, **limits))
    async with RecordingBus(LocalTransport(broker)) as own:
        region = RelayedRegion(own, database)
        async with (
            serving(lambda: LocalTransport(broker), region.worker(), *workers),
            RelayedBus(LocalTransport(broker), "ann") as bus,
        ):
            yield bus, region
    await database.close()

"""A running Nova for tests of shadow mode: its hosts, its stored requests, and its notifications."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from berth.kit.testing import packages
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.local import LocalBroker, LocalTransport
from bus.rabbit.foreign.listener import ForeignListener, Gap, HandleBodies
from bus.sql.database import Database
from bus.sql.migrations import migrate
from features.nova.core.cloud import NovaCloud
from features.nova.core.request_spec import RequestSpec, decoded
from features.nova.databases import NovaDatabases
from features.nova.tests.support.nova_builders import a_cloud
from features.nova.tests.support.nova_notifications import START
from features.nova.with_what_if.messages import NOVA_REPORT, FindNovaReport, NovaReportFound
from features.nova.with_what_if.shadow import ShadowedNova, nova_shadow
from placement_worker.testing import Placement
from tests.support.buses import serving
from tests.support.cloud_workers import a_scheduler
from tests.support.placement_calls import silent_placement
from tests.support.waiting import in_time


class KnownDatabases(NovaDatabases):
    """Nova's databases without a server: the given cloud, and the given RequestSpecs by instance."""

    def __init__(self, cloud: NovaCloud) -> None:
        self.cloud = cloud
        self.specs: dict[str, dict[str, Any]] = {}
        self.is_away = False

    async def read(self) -> NovaCloud:
        return self.cloud

    async def request_spec(self, instance: str) -> RequestSpec | None:
        if self.is_away:
            raise Unavailable("nova's API database: connection refused")
        return decoded(self.specs[instance]) if instance in self.specs else None

    async def close(self) -> None: ...


class GivenNotifications(ForeignListener):
    """A listener whose messages come from the test."""

    def __init__(self) -> None:
        super().__init__("amqp://nowhere/", exchange="nova", keys=(), queue="q", name="test", made_by="Nova")
        self.waiting = 0  # messages in each of Nova's own queues
        self._gap: Gap
        self._handle: asyncio.Future[HandleBodies] = asyncio.get_running_loop().create_future()

    async def run(self, handle: HandleBodies, gap: Gap) -> None:
        self._gap = gap
        self._handle.set_result(handle)
        await asyncio.Event().wait()

    async def unread(self, queues: Iterable[str]) -> dict[str, int]:
        return {name: self.waiting for name in queues if self.waiting}

    async def interrupt(self) -> None:
        """Report that messages were lost."""
        self.has_lost = True
        await in_time(self._handle)
        self._gap()

    async def deliver(self, *bodies: bytes) -> None:
        """Deliver messages together; returns when they may be acknowledged."""
        await (await in_time(self._handle))(bodies)


@dataclass
class ShadowedWorld:
    bus: Bus
    databases: KnownDatabases
    notifications: GivenNotifications  # without effect if the world has a listener
    now: list[float] = field(default_factory=lambda: [START + 0.01])

    async def report(self, **question: Any) -> NovaReportFound:
        return await in_time(self.bus.asker(NOVA_REPORT)(FindNovaReport(**question)))


@asynccontextmanager
async def a_shadowed_nova(
    placement: Placement,
    store: Database,
    *,
    days: float = 14.0,
    has_scheduler: bool = True,
    listener: ForeignListener | None = None,
) -> AsyncIterator[ShadowedWorld]:
    """Serve placement, a scheduler and shadow mode for a Nova with the hosts compute-1 and compute-2.

    The clock of shadow mode stands at the time of the first notification.
    """
    await migrate(store, *packages("nova-shadow"))
    broker, databases, notifications = LocalBroker(), KnownDatabases(a_cloud()), GivenNotifications()
    now = [START + 0.01]
    async with Bus(LocalTransport(broker)) as bus:
        followed = ShadowedNova(notifications=listener or notifications, databases=databases, days=days)
        workers = [silent_placement(placement)]
        if has_scheduler:
            workers.append(a_scheduler(bus, placement.clock))
        async with serving(lambda: LocalTransport(broker), *workers):
            shadow = nova_shadow(followed, store, bus, Clock(now=lambda: now[0]))
            async with serving(lambda: LocalTransport(broker), shadow) as asking:
                yield ShadowedWorld(asking, databases, notifications, now)

"""Hosts with instances, in a real placement, for tests of commands that empty hosts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from berth.kit import host_named
from berth.kit.testing import commands_connect_by, state_of
from bus.delivery.runner import Bus
from bus.local import LocalBroker, LocalTransport
from bus.worker import Worker
from features.moves import emptying, plans
from features.moves.tests.support.fake_movers import FakeMovers, an_instance_there
from features.moves.tests.support.planning_schedulers import a_planning_scheduler
from placement_worker.testing import Placement
from tests.support.buses import serving
from tests.support.placement_builders import a_placement, a_report
from tests.support.placement_calls import report, silent_placement


@dataclass
class HostsToEmpty:
    """Hosts 1, 2 and 9 in a real placement: two instances are on host 1, and one instance is on host 2."""

    movers: FakeMovers
    placement: Placement
    bus: Bus

    async def state(self, host: int) -> str:
        return state_of(await host_named(self.bus, f"host-{host}"))

    def on(self, host: int) -> list[str]:
        return sorted(build.build for build in self.movers.builds.values() if build.host == f"host-{host}")


@asynccontextmanager
async def hosts_to_empty(patch: pytest.MonkeyPatch, *workers: Worker) -> AsyncIterator[HostsToEmpty]:
    """Run a placement, scripted movers and `workers` on an in-memory bus, to which commands connect too."""
    broker, fake = LocalBroker(), FakeMovers(alone=False)
    fake.have(an_instance_there(1, 1), an_instance_there(2, 1), an_instance_there(3, 2))
    commands_connect_by(lambda: LocalTransport(broker), patch)
    patch.setenv("BERTH_CELLS", "c1")
    patch.setattr(emptying, "LIST_SECONDS", 0.02)
    patch.setattr(plans, "STEP_SECONDS", 0.02)
    async with (
        a_placement("sqlite+aiosqlite://") as placement,
        a_planning_scheduler(fake, placement) as (scheduler, publishes),
    ):
        assert await report(placement, *(a_report(number) for number in (1, 2, 9))) == ["", "", ""]

        served = silent_placement(placement), fake.worker(), scheduler, *workers
        async with serving(lambda: LocalTransport(broker), *served) as bus:
            publishes.append(bus.publish)
            yield HostsToEmpty(fake, placement, bus)

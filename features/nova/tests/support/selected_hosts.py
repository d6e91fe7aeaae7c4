"""Selections of hosts over HTTP, in a region in memory."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from berth.kit.testing import packages
from bus.messages import HostReported
from bus.reports import HostState, Inventory
from bus.requests import Flavor
from bus.sql.database import Database
from bus.sql.migrations import migrate
from features.nova.messages import HostsAnswered, HostsAsked
from features.nova.selecting import HostSelection
from placement_worker.testing import Placement
from scheduler_worker.testing import Scheduler
from tests.support.ids import uid
from tests.support.placement_builders import a_report
from tests.support.scheduler_builders import a_request
from tests.support.schedulers import scheduler_of

SMALL = Flavor(name="small", vcpus=2)


@pytest.fixture
def url() -> str:
    """Return one type of database: tests of placement run its statements on both."""
    return "sqlite+aiosqlite://"


@pytest.fixture
async def decisions(url: str, tmp_path: Path) -> AsyncIterator[Database]:
    """Yield the scheduler's database, of the same type as placement's."""
    if url.startswith("sqlite"):
        database = Database(f"sqlite+aiosqlite:///{tmp_path}/scheduler.db")
    else:
        database = Database(url, namespace="scheduler")
    await migrate(database, *packages("scheduler"))
    yield database
    await database.close()


@pytest.fixture
async def selection(placement: Placement, decisions: Database) -> HostSelection:
    scheduler = scheduler_of(placement)
    await add_hosts(placement, scheduler)
    return HostSelection(scheduler, decisions)


async def add_hosts(placement: Placement, scheduler: Scheduler, building: int = 0) -> None:
    """Add three hosts with 4 CPUs each."""
    for host in (1, 2, 3):
        report = a_report(host, inventories={"VCPU": Inventory(total=4)})
        assert await placement.reports.report_many([report]) == [None]
        states = (HostState(root=uid(host, "a"), host=f"host-{host}", building=building),)
        await scheduler.handle(HostReported(cell="c1", agent=f"agent-{host}", sequence=1, hosts=states))


async def ask(selection: HostSelection, *instances: int, **fields: Any) -> HostsAnswered:
    request = replace(a_request(flavor=SMALL), instances=tuple(map(uid, instances)), **fields)
    [answer] = await selection.answer_many([HostsAsked(request=request)])
    return answer


def hosts_of(answer: HostsAnswered) -> list[str]:
    assert answer.refused is None, answer.refused
    return [placed.chosen.host for placed in answer.placed]

"""The scheduler's database: decisions about unplaceable builds, and hosts that are not up."""

from collections.abc import Callable
from typing import Self

import pytest
from msgspec.structs import replace
from prometheus_client import REGISTRY

from berth.kit.testing import packages
from bus.decisions import Decision, RefusedBuild, RefusedFound, Removal
from bus.host_health import FindHostHealth
from bus.messages import HostReported
from bus.protocol import encode
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import MAX_CAUSE
from scheduler_worker import host_records
from scheduler_worker.extension import HostBook, decisions, unplaceable
from scheduler_worker.host_records import HostRecords
from tests.support.ids import uid
from tests.support.rule_builders import spaced_source, the_facts
from tests.support.scheduler_builders import a_request, a_state
from tests.support.virtual_time import TurnedClock

DECISION = Decision(considered=3, code="room", removals=(Removal(constraint="room", removed=3, left=0),))


@pytest.fixture
async def store(open_database: Callable[..., Database]) -> Database:
    database = open_database()
    await migrate(database, *packages("scheduler"))
    return database


async def test_refusals_are_stored_by_build_and_by_request_until_pruned(store: Database) -> None:
    request = a_request(1, instances=2, project="p")
    reply = unplaceable(request, request.instances, "no room", DECISION)
    for at in (5.0, 6.0):
        async with store.write() as tx:
            await decisions.add(tx, [(request, reply)], at)
    for id_ in (request.request, *request.instances):
        async with store.read() as tx:
            found = await decisions.decision_of(tx, id_)
        assert (found.request, found.builds, found.reason) == (request, request.instances, "no room")
        assert (found.decision, found.at) == (DECISION, 5.0)
    async with store.write() as tx:
        assert await decisions.prune(tx, 5.0, 10) == 0
        assert await decisions.prune(tx, 5.5, 10) == 1
        assert not (await decisions.decision_of(tx, request.request)).known


def test_a_page_of_builds_without_a_host_fits_a_message_with_the_longest_reasons() -> None:
    build = RefusedBuild(
        build=uid(1, "b"), request=uid(1, "a"), name="n" * 255, project="p" * 255, flavor="f" * 200,
        since=1.0, reason="x" * MAX_CAUSE,
    )  # fmt: skip
    assert encode(RefusedFound(builds=(build,) * decisions.REFUSED_PAGE))


HOSTS = [replace(the_facts(number), agent="agent") for number in (1, 2, 3)]


class Life:
    """A scheduler process from its start until it is killed."""

    def __init__(self, database: Database, time: TurnedClock) -> None:
        self.database, self.time = database, time
        self.source = spaced_source(HOSTS)
        self.book = HostBook(time.now)
        self.records = HostRecords(self.book, self.source, database, time.clock)

    @classmethod
    async def begins(cls, database: Database, time: TurnedClock) -> Self:
        life = cls(database, time)
        await life.records.load()
        life.book.opened(time.now)
        return life

    async def heartbeats(self, *numbers: int, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.time.now += 1.0
            states = tuple(a_state(number) for number in numbers)
            sequence = int(self.time.now)
            report = HostReported(cell="cell1", agent="agent", sequence=sequence, hosts=states)
            self.book.handle(report, self.time.now)
        await self.records.store()

    async def stored(self) -> list[str]:
        async with self.database.read() as tx:
            return [health.host for health in await host_records.page(tx, ("", ""), 10)]


async def test_hosts_that_are_not_up_are_found_by_pages_and_all_are_counted(store: Database) -> None:
    time = TurnedClock()
    life = await Life.begins(store, time)
    await life.heartbeats(1, 2, 3)
    await life.heartbeats(1, seconds=35)
    first = await life.records.find(FindHostHealth(limit=1, counted=True))
    assert ([host.host for host in first.hosts], first.more) == (["host2"], True)
    assert first.counts == {"cell1": {"up": 1, "down": 2}}
    await life.records.measure()
    for state, count in (("up", 1), ("down", 2)):
        assert REGISTRY.get_sample_value("berth_scheduler_hosts", {"status": state}) == count
    rest = await life.records.find(FindHostHealth(after=first.hosts[0].root))
    assert ([host.host for host in rest.hosts], rest.more) == (["host3"], False)
    assert (await life.records.find(FindHostHealth(roots=(HOSTS[0].root,)))).hosts == ()
    described = await life.records.find(
        FindHostHealth(roots=(HOSTS[0].root, HOSTS[0].root[:-1] + "f"), described=True)
    )
    assert [each.root for each in described.capabilities] == [HOSTS[0].root]


async def test_a_heartbeat_deletes_the_row_that_another_scheduler_stored(store: Database) -> None:
    time = TurnedClock()
    first, second = await Life.begins(store, time), await Life.begins(store, time)
    await first.heartbeats(1, 2, 3)
    await first.heartbeats(1, seconds=35)
    await second.heartbeats(1, 2, 3)  # the first scheduler was killed before these heartbeats
    assert await second.stored() == ["host2", "host3"]
    third = await Life.begins(store, time)
    await third.heartbeats(1, 2)
    assert await third.stored() == ["host3"]


async def test_a_record_stays_while_placement_does_not_have_the_host_and_is_pruned(store: Database) -> None:
    time = TurnedClock()
    first = await Life.begins(store, time)
    await first.heartbeats(1, 2, 3)
    await first.heartbeats(1, 3, seconds=35)
    first.source.memory.index = spaced_source(HOSTS[:1]).memory.index
    await first.heartbeats(1)
    assert await first.stored() == ["host2"]
    await first.records.prune()
    assert await first.stored() == []

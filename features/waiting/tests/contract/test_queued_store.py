"""The scheduler's database: waiting requests, their owners, and decisions about unplaceable builds."""

import asyncio
from collections.abc import Callable
from typing import Any, Self

import pytest
from msgspec.structs import replace
from prometheus_client import REGISTRY
from sqlalchemy import text

from berth.kit.testing import packages
from bus.clock import Clock
from bus.context import envelope_of
from bus.decisions import Decision, RefusedBuild, RefusedFound, Removal
from bus.host_health import FindHostHealth
from bus.messages import HostReported
from bus.protocol import encode
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import MAX_CAUSE
from features.waiting.tables import listing, queued
from features.waiting.tables.queued import OtherScheduler, QueuedRequest
from scheduler_worker import host_records
from scheduler_worker.core.order import unplaceable
from scheduler_worker.host_records import HostRecords
from scheduler_worker.hosts import HostBook
from scheduler_worker.store import decisions
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


def kept(number: int, *, since: float = 0.0, kind: str = "k", **fields: object) -> QueuedRequest:
    message = a_request(number, wait="30m", **fields)  # type: ignore[arg-type]
    return QueuedRequest(message, kind, since, since + 1800.0, 7, "no room", "1 VCPU free", DECISION)


async def add(store: Database, owner: str, *those: QueuedRequest) -> set[str]:
    async with store.write() as tx:
        return await queued.add(tx, owner, those)


async def of(store: Database, owner: str) -> list[QueuedRequest]:
    async with store.read() as tx:
        found = await queued.owned_of(tx, owner, await queued.owned(tx, owner))
    return sorted(found, key=lambda one: one.request)


async def test_a_waiting_request_is_stored_once_and_completely(store: Database) -> None:
    one = kept(1, instances=2, priority=3, project="p")
    assert await add(store, "s1", one, kept(2)) == {uid(1, "a"), uid(2, "a")}
    assert await add(store, "s2", kept(1), kept(3)) == {uid(3, "a")}
    again = kept(1, since=5.0, instances=2)
    assert await add(store, "s1", again, kept(4), kept(4)) == {uid(1, "a"), uid(4, "a")}
    assert await of(store, "s1") == [one, kept(2), kept(4)]  # a later version of a stored request is ignored
    async with store.write() as tx:
        await queued.drop(tx, [uid(1, "a"), uid(9, "a")])
    assert await of(store, "s1") == [kept(2), kept(4)]


def a_new(number: int, **fields: Any) -> queued.NewRequest:
    message = kept(number, **fields).message
    return queued.new(message.request, message.project, 0, envelope_of(message, Clock()))


async def test_a_new_request_is_stored_once_until_its_scheduler_has_handled_it(store: Database) -> None:
    row = a_new(1, project="p")
    retry = queued.new(row.request, "p", 0, replace(row.envelope, attempt=2))
    async with store.write() as tx:
        assert await queued.add_new(tx, "s1", [row]) == {row.id: "s1"}
        assert await queued.add_new(tx, "s2", [row, retry]) == {row.id: "s1", retry.id: "s2"}
        assert await queued.new_counts(tx) == {"p": 2}
        assert await queued.owned(tx, "s1") == set()
        assert await listing.count(tx) == 0
        await queued.drop_new(
            tx, "s2", [row.id]
        )  # as a scheduler that was paused, and whose rows were adopted
        assert await queued.new_counts(tx) == {"p": 2}
    assert await add(store, "s2", kept(1, project="p")) == {row.request}
    assert await add(store, "s1", kept(1, project="p")) == set()
    async with store.write() as tx:
        await queued.drop_new(tx, "s1", [row.id])  # of one message: the retry and what waits remain
        assert await queued.following(tx, "s2", "p", queued.FIRST, 9) == [retry]
        await queued.drop(tx, [row.request])
        assert await queued.following(tx, "s2", "p", queued.FIRST, 9) == [retry]
        assert await queued.owned(tx, "s2") == set()


async def test_waiting_requests_are_counted_by_project(store: Database) -> None:
    await add(store, "s1", kept(1, project="p"), kept(2, project="p"), kept(3, project="q"), kept(4))
    await add(store, "s2", kept(5, project="p"), kept(6, project="r"))
    async with store.write() as tx:
        await queued.cancel(tx, {uid(2, "a"): "deleted"})
        assert await listing.counts(tx, ("p", "r", "unknown", "p")) == {"p": 2, "r": 1}
        assert await listing.counts(tx, ()) == {}


async def beat(store: Database, owner: str) -> OtherScheduler:
    async with store.write() as tx:
        await queued.beat(tx, owner, 0)
        return next(known for known in await queued.roster(tx) if known.owner == owner)


async def test_a_scheduler_that_goes_on_keeps_the_requests_that_were_not_adopted_yet(store: Database) -> None:
    await add(store, "s1", kept(1))
    await beat(store, "s1")
    ended = await beat(store, "s1")
    async with store.write() as tx:
        await queued.add_new(tx, "s1", [a_new(2, project="p")])
        assert await queued.END(tx, owner="s1", beat=ended.beat)
        assert not await queued.END(tx, owner="s1", beat=ended.beat)  # by another scheduler
        assert not await queued.beat(tx, "s1", 0)  # so s1 compares its requests with those in memory
        assert await queued.beat(tx, "s1", 0)
        ended = replace(ended, beat=queued.ENDED)
        assert await queued.adopt(tx, "s2", ended, 9) == []
        assert await queued.adopt_new(tx, "s2", ended, ["p"], 9) == []


async def test_two_schedulers_that_adopt_at_the_same_time_share_the_requests(store: Database) -> None:
    await add(store, "s1", *map(kept, range(1, 100)))
    news = [a_new(number, project="p") for number in range(100, 400)]
    ended = await beat(store, "s1")
    async with store.write() as tx:
        await queued.add_new(tx, "s1", news)

    async def adopt(owner: str) -> tuple[int, int]:
        async with store.write() as tx:
            several = len(await queued.adopt(tx, owner, ended, 50))
            return several, len(await queued.adopt_new(tx, owner, ended, ["p"], 200))

    async def drop() -> None:  # the ended scheduler was only paused
        async with store.write() as tx:
            await queued.drop_new(tx, "s1", [row.id for row in news[::7]])

    first, second, _ = await asyncio.gather(adopt("s2"), adopt("s3"), drop())
    async with store.read() as tx:
        counts = {
            owner: sum(depth.requests for depth in await queued.depths(tx, owner)) for owner in ("s2", "s3")
        }
        assert (len(await queued.owned(tx, "s2")), counts["s2"]) == first
        assert (len(await queued.owned(tx, "s3")), counts["s3"]) == second


async def test_an_unreadable_row_does_not_delay_other_waiting_requests(store: Database) -> None:
    await add(store, "s1", kept(1), kept(2))
    async with store.write() as tx:
        await tx.execute(text("UPDATE queued SET message = 'x' WHERE request = :r"), {"r": uid(1, "a")})
    assert await of(store, "s1") == [kept(2)]


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


async def reserve(store: Database, **moves: str) -> dict[str, str]:
    async with store.write() as tx:
        return await queued.one_of_each(tx, moves)


async def test_at_most_one_move_of_an_instance_waits(store: Database) -> None:
    first, second, build = uid(1, "e"), uid(2, "e"), uid(5, "b")
    assert await reserve(store, **{build: first}) == {build: first}
    assert await reserve(store, **{build: second, uid(6, "b"): first}) == {build: first, uid(6, "b"): first}
    assert await reserve(store, **{build: first}) == {build: first}
    async with store.write() as tx:
        await queued.drop(tx, [first])
    assert await reserve(store, **{build: second}) == {build: second}


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

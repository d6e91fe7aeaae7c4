"""The scheduler's database: waiting requests and their owners."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from berth.kit.testing import packages
from bus.clock import Clock
from bus.context import envelope_of
from bus.decisions import Decision, Removal
from bus.sql.database import Database
from bus.sql.migrations import migrate
from features.waiting.tables import listing, queued
from features.waiting.tables.queued import OtherScheduler, QueuedRequest
from tests.support.ids import uid
from tests.support.scheduler_builders import a_request

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

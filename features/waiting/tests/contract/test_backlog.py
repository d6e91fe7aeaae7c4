"""The backlog of build requests: received from the broker, stored, served in fair order."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from berth.kit.testing import packages
from bus.clock import Clock
from bus.context import envelope_of
from bus.errors import Unavailable
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildRequested
from bus.protocol import Delivery, QueueSpec, decode, is_suspect
from bus.sql.database import Database
from bus.sql.failures import ATTEMPTS, Conflict
from bus.sql.migrations import migrate
from bus.sql.statement import Transaction
from features.waiting import request_backlog as backlog_module
from features.waiting import stored_requests
from features.waiting.core.start_times import ClassHistory, new_kind
from features.waiting.owned_rows import OwnedRows
from features.waiting.owner import WaitingOwner
from features.waiting.queue import WaitingQueue
from features.waiting.request_backlog import PREFETCH, RequestBacklog
from features.waiting.request_sizes import RequestSizes
from features.waiting.start_estimates import StartEstimates
from features.waiting.stored_requests import SUSPECT_READ
from features.waiting.tables import queued
from features.waiting.tables.queued import FIRST, NewId, NewRequest
from tests.support.ids import uid
from tests.support.scheduler_builders import SMALL, a_request
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until

BOUND = 256
QUEUE = QueueSpec("scheduler:build.requested", ("build.requested",))
SIZES = cast(RequestSizes, SimpleNamespace(of=lambda body: {"VCPU": 0.001}))


DATABASES = ["sqlite file"]  # test_queued_store.py runs the statements on PostgreSQL, too


@pytest.fixture(autouse=True)
def small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_module, "BOUND_OF_ONE", BOUND)


@pytest.fixture
def everything_is_stored(monkeypatch: pytest.MonkeyPatch, small_bound: None) -> None:
    monkeypatch.setattr(backlog_module, "BOUND_OF_ONE", 0)
    monkeypatch.setattr(backlog_module, "LIGHT", 0)


class Broker:
    """A broker with the queue of build requests, and schedulers that take requests from the queue."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = Clock(chance=random.Random(3))
        self.transport = LocalTransport(LocalBroker())
        self._number = 0

    async def publish(self, project: str, several: int = 1, **fields: Any) -> list[str]:
        requests = [self._request(project, fields) for _ in range(several)]
        envelopes = [envelope_of(request, self.clock) for request in requests]
        await self.transport.publish(envelopes, expected=[True] * several)
        return [request.request for request in requests]

    def _request(self, project: str, fields: dict[str, Any]) -> BuildRequested:
        self._number += 1
        return a_request(self._number, flavor=SMALL, project=project, **fields)

    @asynccontextmanager
    async def backlog(self, owner: str = "s1") -> AsyncIterator[RequestBacklog]:
        rows = OwnedRows(self.database, owner, dict)
        backlog = RequestBacklog(rows, StartEstimates(self.clock), self.clock, SIZES, 2)
        await backlog.open(await self.transport.consume(QUEUE, PREFETCH))
        running = asyncio.create_task(backlog.run())
        try:
            yield backlog
        finally:
            await backlog.stop()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    def owner(self, backlog: RequestBacklog) -> WaitingOwner:
        """Return a scheduler's owner of waiting requests, of which there are none."""
        backlog._rows.is_registered = True
        store = SimpleNamespace(
            rows=backlog._rows,
            requests={},
            starts=backlog._starts,
            queues=SimpleNamespace(reserve_elsewhere=lambda reserved: None),
            fitting=SimpleNamespace(source=SimpleNamespace(seen=0)),
            leave=lambda requests: None,
            doubt=lambda entries: None,
        )
        queue = cast(WaitingQueue, SimpleNamespace(store=store, recheck=lambda: None))
        return WaitingOwner(queue, backlog, self.clock)

    async def batches(self, *arrivals: tuple[float, int]) -> list[tuple[float, int]]:
        """Return when batches begin, and with how many requests, if batches take no time. `arrivals` are
        numbers of requests, each with the time since the last one.
        """
        found = []
        loop = asyncio.get_running_loop()

        async def place(backlog: RequestBacklog) -> None:
            while True:
                first = await backlog.get()
                batch = [first, *iter(backlog.get_nowait, None)]
                found.append((round(loop.time() - began, 3), len(batch)))
                for delivery in batch:
                    delivery.done()
                backlog.handled(batch)

        async with self.backlog() as backlog:
            began, placing = loop.time(), asyncio.create_task(place(backlog))
            for seconds, several in arrivals:
                await asyncio.sleep(seconds)
                await self.publish("p1", several)
            await asyncio.sleep(1.0)
            placing.cancel()
        return found

    async def depth(self) -> int:
        async with self.database.read() as tx:
            return sum((await queued.new_counts(tx)).values())

    async def adopted(self, owner: str, before: str, projects: Sequence[str] = ("p",)) -> list[NewRequest]:
        """Let a scheduler take over new requests of one that ended, without knowing them."""
        async with self.database.write() as tx:
            [ended] = [known for known in await queued.roster(tx) if known.owner == before]
            return await queued.adopt_new(tx, owner, ended, projects, 10_000)

    async def adopt(self, backlog: RequestBacklog, before: str) -> int:
        """Take over the new requests of project p of a scheduler that ended; return how many."""
        adopted = await self.adopted(backlog._rows.name, before)
        backlog.stored.on_adopted(adopted)
        return len(adopted)

    async def stored(self) -> None:
        """Wait until all messages are stored, except the few that the backlog holds only in memory."""
        await until(lambda: self.unacknowledged() <= BOUND)

    def unacknowledged(self) -> int:
        queue = self.transport.broker.queues[QUEUE.name]
        readers = cast(list[Any], queue.readers)
        return len(queue.items) + sum(len(reader._unsettled) for reader in readers)


@pytest.fixture
async def broker(open_database: Callable[..., Database]) -> Broker:
    database = open_database()
    await migrate(database, *packages("scheduler"))
    broker = Broker(database)
    await broker.transport.declare(QUEUE)
    return broker


def project_of(delivery: Delivery) -> str:
    return parsed(delivery).project


def parsed(delivery: Delivery) -> BuildRequested:
    return decode(BuildRequested, delivery.envelope.body)


async def batch(backlog: RequestBacklog, most: int = 16) -> list[Delivery]:
    """Return the messages of one handler call."""
    found = [await backlog.get()]
    while len(found) < most and (delivery := backlog.get_nowait()) is not None:
        found.append(delivery)
    return found


async def serve(backlog: RequestBacklog, several: int, most: int = 16) -> list[BuildRequested]:
    """Handle this many requests, and return them in order."""
    served: list[BuildRequested] = []
    while len(served) < several:
        handled = await asyncio.wait_for(batch(backlog, min(most, several - len(served))), 20)
        for delivery in handled:
            served.append(parsed(delivery))
            delivery.done()
        backlog.handled(handled)
    return served


async def test_a_few_requests_are_not_stored(broker: Broker) -> None:
    async with broker.backlog() as backlog:
        sent = await broker.publish("p", 20)
        assert [request.request for request in await serve(backlog, 20)] == sent
        assert not await broker.depth()


async def test_a_batch_whose_results_are_settled_apart_does_not_delay_the_next(broker: Broker) -> None:
    async with broker.backlog() as backlog:
        sent = await broker.publish("p", 40)
        apart = [await batch(backlog), await batch(backlog)]  # as many calls as may run
        for handled in apart:
            backlog.handled(handled)
        assert len(await serve(backlog, 8)) == len(sent) - 32  # before the others are settled
        for delivery in (delivery for handled in apart for delivery in handled):
            delivery.done()


async def test_the_first_batches_of_a_flood_leave_the_shares_of_projects_that_begin_with_it_exact(
    broker: Broker,
) -> None:
    """Three projects with the weights 1, 2 and 4 begin at the same moment, the smallest a little earlier."""
    weights = {"p1": 1, "p2": 2, "p4": 4}
    async with broker.backlog() as backlog:
        backlog.set_weights(weights)
        await broker.publish("p1", 50)
        await until(lambda: backlog.buffered == 50)
        first = await batch(backlog, 1280)
        await broker.publish("p2", 70)
        await broker.publish("p4", 130)
        await until(lambda: backlog._queue.count("p4") == 130)
        for delivery in first:
            delivery.done()
        backlog.handled(first)
        served = [request.project for request in await serve(backlog, 224 - len(first), 1280)]
        counted = Counter(served) + Counter(map(project_of, first))
        assert counted == {project: 32 * weight for project, weight in weights.items()}


async def test_a_project_with_few_requests_needs_no_free_handler_call(broker: Broker) -> None:
    async with broker.backlog() as backlog:
        await broker.publish("flood", 2000)
        await until(lambda: bool(backlog.stored.projects))
        busy = [await batch(backlog), await batch(backlog)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(batch(backlog), 0.05)
        await broker.publish("single")
        assert [project_of(each) for each in await asyncio.wait_for(batch(backlog), 5)] == ["single"]
        for handled in busy:
            backlog.handled(handled)
        assert {project_of(each) for each in await asyncio.wait_for(batch(backlog), 5)} == {"flood"}


async def test_a_single_request_does_not_wait_until_a_flood_is_stored(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog_module, "BOUND_OF_ONE", 0)
    async with broker.backlog() as backlog:
        is_open = asyncio.Event()
        add = backlog.stored.add

        async def add_later(requests: Sequence[NewRequest]) -> dict[NewId, str]:
            await is_open.wait()
            return await add(requests)

        monkeypatch.setattr(backlog.stored, "add", add_later)
        await broker.publish("flood", 3000)
        await broker.publish("single")
        await until(lambda: backlog.buffered == 3001)
        assert [request.project for request in await serve(backlog, 1)] == ["single"]
        is_open.set()
        await broker.stored()


async def test_a_paused_scheduler_handles_requests_that_another_has_adopted_without_effect(
    broker: Broker,
) -> None:
    async with broker.backlog("s1") as paused:
        await broker.publish("p", 2000)
        await broker.stored()
        await serve(paused, BOUND)  # those that are not stored
        handled = await batch(paused, 300)
        async with broker.backlog("s2") as backlog:
            left = await broker.adopt(backlog, "s1")
            for delivery in handled:
                delivery.done()
            paused.handled(handled)
            await paused.stored.flush()
            assert await broker.depth() == left
            served = {request.request for request in await serve(backlog, left)}
            assert {parsed(delivery).request for delivery in handled} <= served
            await until(lambda: not backlog.stored.projects)


async def test_requests_that_return_to_a_scheduler_with_some_of_them_in_memory_are_read(
    broker: Broker,
) -> None:
    async with broker.backlog("s1") as backlog:
        sent = await broker.publish("p", 5000)
        await broker.stored()
        left = await broker.depth()
        async with broker.database.write() as tx:
            await queued.beat(tx, "s2", 0)
        stored = backlog.stored.projects["p"]
        unread = stored.rows - len(stored.open)
        await broker.adopted("s2", "s1")
        assert await broker.adopt(backlog, "s2") == left
        assert stored.rows == left + unread  # until they are read
        served = {request.request for request in await serve(backlog, 5000, most=200)}
        assert served == {*sent}
        await until(lambda: not backlog.stored.projects)
        assert not await broker.depth()


def lost_after_commit(works: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def failing(tx: Transaction, *args: Any) -> Any:
        def lost() -> None:
            raise Unavailable("the connection was lost after the commit")

        tx.after_commit(lost)
        return await works(tx, *args)

    return failing


async def test_a_backlog_is_served_although_its_takeover_seemed_to_fail(broker: Broker) -> None:
    async with broker.backlog("s1"):
        sent = await broker.publish("p", 2000)
        await broker.stored()
    left = await broker.depth()
    async with broker.backlog("s2") as backlog:
        await broker.adopted("s2", "s1")
        async with broker.database.read() as tx:
            await backlog.stored.recount(tx)
        served = {request.request for request in await serve(backlog, left)}
    assert len(served) == left and served <= {*sent}


@pytest.mark.parametrize("how", ["arrives", "is adopted", "is found by a recount"])
async def test_a_request_that_becomes_stored_during_a_read_is_read(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its key may be before those that are being read, and its row is not among them."""
    late = a_request(100_000, flavor=SMALL, project="p")
    row = queued.new(late.request, "p", 0, replace(envelope_of(late, broker.clock), sent_at=1.0))
    async with broker.backlog() as backlog:
        sent = await broker.publish("p", 5000)
        await broker.stored()
        following, added = queued.following, list[int]()

        async def followed(tx: Transaction, *args: Any) -> list[NewRequest]:
            rows = await following(tx, *args)
            if len(rows) < args[-1] and not added:  # the rest of the requests
                added.append(len(rows))
                asyncio.get_running_loop().create_task(add())
                await until(done.is_set)
            return rows

        async def add() -> None:
            async with broker.database.write() as tx:
                await queued.add_new(tx, "s1", [row])
            if how == "arrives":
                backlog.stored.on_stored(row, row.envelope)
            elif how == "is adopted":
                backlog.stored.on_adopted([row])
            else:
                async with broker.database.read() as tx:
                    await backlog.stored.recount(tx)
            done.set()

        done = asyncio.Event()
        monkeypatch.setattr(queued, "following", followed)
        served = [request.request for request in await serve(backlog, 5001, most=200)]
        assert added and {*served} == {*sent, late.request}


async def test_requests_whose_storing_seemed_to_fail_are_served_and_do_not_stay_stored(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker.backlog() as backlog:
        with monkeypatch.context() as patch:
            patch.setattr(queued, "add_new", lost_after_commit(queued.add_new))
            sent = await broker.publish("p", BOUND + 100)
            assert [request.request for request in await serve(backlog, 200)] == sent[:200]
        assert len(await serve(backlog, BOUND - 100)) == BOUND - 100
        async with broker.database.read() as tx:
            await backlog.stored.recount(tx)
        again = await serve(backlog, await broker.depth())
        assert {request.request for request in again} <= {*sent}
        await until(lambda: not backlog.stored.projects)
        assert not await broker.depth()


async def test_a_retry_remains_stored_when_the_deletion_of_the_first_attempt_is_repeated(
    broker: Broker, everything_is_stored: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = envelope_of(a_request(1, flavor=SMALL, project="p"), broker.clock)
    async with broker.backlog() as backlog:
        await broker.transport.publish([message], expected=[True])
        await until(lambda: bool(backlog.stored.projects))
        drop, calls = backlog.stored._drop, list[int]()

        async def uncertain(requests: Collection[NewId]) -> None:
            calls.append(len(requests))
            if len(calls) == 2:
                await broker.transport.publish([replace(message, attempt=2)], expected=[True])
                await until(lambda: broker.unacknowledged() == 0)
            await drop(requests)
            if len(calls) == 1:
                raise Unavailable("the connection was lost after the commit")

        monkeypatch.setattr(backlog.stored, "_drop", uncertain)
        await serve(backlog, 2)
        await until(lambda: not backlog.stored.projects)
        assert calls == [1, 1, 1]


@pytest.mark.parametrize("step", ["add_new", "drop_new"])
async def test_lost_races_do_not_end_the_scheduler(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    failures, works = [Conflict("a deadlock")] * ATTEMPTS, getattr(queued, step)

    async def losing(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await works(*args)

    monkeypatch.setattr(queued, step, losing)
    async with broker.backlog() as backlog:
        await broker.publish("p", 600)
        await serve(backlog, 600)
        await until(lambda: not backlog.stored.projects)
        assert not failures and not await broker.depth()


async def test_requests_that_two_ended_schedulers_had_in_memory_are_suspects(broker: Broker) -> None:
    requests = [a_request(number, flavor=SMALL, project="p") for number in range(800)]
    rows = [queued.new(each.request, "p", 0, envelope_of(each, broker.clock)) for each in requests]
    async with broker.database.write() as tx:
        await queued.beat(tx, "s0", 0)
        await queued.add_new(tx, "s0", rows)
    for ended, owner in (("s0", "s1"), ("s1", "s2")):
        async with broker.backlog(owner) as backlog:
            await broker.adopt(backlog, ended)
            async with broker.database.write() as tx:
                await queued.beat(tx, owner, 0)
            assert {is_suspect(delivery) for delivery in await batch(backlog)} == {owner == "s2"}
            assert len(backlog.stored.projects["p"].open) == SUSPECT_READ
    async with broker.database.read() as tx:
        kept = await queued.following(tx, "s2", "p", FIRST, 1000)
        assert [each.strikes for each in kept] == [3] * SUSPECT_READ + [1] * (800 - SUSPECT_READ)


async def test_a_scheduler_that_stops_releases_its_backlog(broker: Broker) -> None:
    async with broker.backlog("s1") as backlog:
        await broker.publish("p", 1000)
        await broker.stored()
        await serve(backlog, BOUND + 1)
        await broker.owner(backlog).release_ownership()
        left = await broker.depth()
    async with broker.backlog("s2") as backlog:
        await broker.owner(backlog).beat()
        assert len(await serve(backlog, left)) == left
        async with broker.database.read() as tx:
            assert "s1" not in {known.owner for known in await queued.roster(tx)}


async def test_the_pace_of_each_project_is_stored_with_the_heartbeat_and_adopted_by_a_successor(
    broker: Broker,
) -> None:
    passed = [0.0]
    broker.clock = Clock(chance=random.Random(3), monotonic=lambda: passed[0])

    def history(backlog: RequestBacklog) -> ClassHistory:
        return backlog._starts.times.histories[new_kind("p")]

    async def beat(owner: WaitingOwner) -> None:
        passed[0] += 1.0
        await owner.beat()

    async with broker.backlog() as backlog:
        owner = broker.owner(backlog)
        await broker.publish("p", 150)
        await until(lambda: backlog.buffered == 150)
        await broker.publish("p", 2500, priority=1)
        await broker.stored()
        await beat(owner)
        for _ in range(6):
            await serve(backlog, 20)
            await beat(owner)
        measured = history(backlog)
        assert (measured.waiting, measured.unstored, measured.together) == (2380, 150, 20.0)
        assert measured.advances[-1] == pytest.approx(6.0, abs=0.1)
        assert measured.seconds[-1] == pytest.approx(6.0, abs=0.1)
    async with broker.backlog("s2") as backlog:
        owner = broker.owner(backlog)
        for _ in range(8):
            await beat(owner)
        assert history(backlog).advances[-1] >= measured.advances[-1] * 0.9
        assert history(backlog).waiting == await broker.depth() >= 2380


async def test_without_a_database_requests_are_served_from_memory(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker.backlog() as backlog:

        def unreachable(requests: object) -> Awaitable[None]:
            raise Unavailable("the database is away")

        with monkeypatch.context() as patch:
            patch.setattr(backlog.stored, "add", unreachable)
            sent = await broker.publish("p", BOUND + 100)
            assert [request.request for request in await serve(backlog, 200)] == sent[:200]
        assert len(await serve(backlog, BOUND - 100)) == BOUND - 100


async def test_messages_that_were_not_stored_return_to_the_queue_at_the_stop(broker: Broker) -> None:
    async with broker.backlog() as backlog:
        await broker.publish("p", 50)
        await until(lambda: backlog.buffered == 50)
    assert await broker.transport.waiting(QUEUE.name) == 50


@pytest.mark.parametrize(
    "arrivals, batches",
    [
        ([(0.1, 20), (0.01, 3), (0.01, 4), (0.02, 2)], [(0.1, 20), (0.125, 7), (0.15, 2)]),
        ([(0.1, 1), (0.01, 1), (0.01, 1)], [(0.1, 1), (0.11, 1), (0.12, 1)]),
        (
            [(0.1, 20), (0.01, BOUND + 1)],
            [(0.1, 20), (0.11, 32), (0.11, 48), (0.11, 72), (0.11, BOUND + 1 - 152)],
        ),
    ],
    ids=["several at a time: at a pace", "one at a time: immediately", "a backlog: immediately"],
)
def test_batches_of_requests_begin(
    arrivals: list[tuple[float, int]], batches: list[tuple[float, int]]
) -> None:
    @in_virtual_time
    async def in_time() -> None:
        database = Database("sqlite+aiosqlite://", inline=True)
        await migrate(database, *packages("scheduler"))
        broker, time = Broker(database), asyncio.get_running_loop().time
        broker.clock = Clock(chance=random.Random(3), monotonic=time)
        assert await broker.batches(*arrivals) == batches
        await database.close()

    in_time()


@pytest.mark.parametrize("wrong", [{"priority": 3_000_000_000}, {"project": "a\0b"}], ids=str)
async def test_requests_with_values_that_no_database_stores_are_left_to_the_bus(
    broker: Broker, wrong: dict[str, Any]
) -> None:
    """More of them than may wait in memory."""
    async with broker.backlog() as backlog:
        valid = envelope_of(a_request(1, flavor=SMALL, project="p"), broker.clock)
        body = msgspec.Raw(msgspec.json.encode(msgspec.json.decode(bytes(valid.body)) | wrong))
        several = [replace(valid, id=uid(number), body=body) for number in range(2 * BOUND)]
        await broker.transport.publish(several, expected=[True] * len(several))
        await broker.publish("p")
        for _ in several:
            [delivery] = await batch(backlog, 1)
            assert delivery.envelope.body == body
            delivery.done()
            backlog.handled([delivery])
        assert [request.project for request in await serve(backlog, 1)] == ["p"]
        assert await broker.depth() == 0


async def test_the_requests_in_memory_are_bounded_for_all_projects_together(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_requests, "MOST_READ", 300)
    monkeypatch.setattr(stored_requests, "LEAST_READ", 10)
    async with broker.backlog() as backlog:
        for project in map(str, range(10)):
            await broker.publish(project, 300)
        await broker.stored()
        assert backlog.buffered < 10 * 300 / 2

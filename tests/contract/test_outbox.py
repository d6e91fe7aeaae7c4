"""What is emitted in a transaction is published when that is committed, in order, whatever happens then."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest
from sqlalchemy import MetaData, text

from bus.clock import Clock
from bus.context import current
from bus.database import Database
from bus.messages import BuildDeleted, DestroyOrdered, Message, PlacementChanged
from bus.outbox import Outbox, outbox_table
from bus.protocol import Envelope, Unavailable, Unroutable
from bus.worker import Undeclared
from deploy.servers import Postgres

Open = Callable[..., Database]

DEADLINE = 20.0
BUILD = "00000000-0000-4000-8000-000000000001"
ANNOUNCES = (PlacementChanged, DestroyOrdered)


def changed(number: int) -> PlacementChanged:
    return PlacementChanged(number=number, changes=())


def destroy(agent: str, attempt: int) -> DestroyOrdered:
    return DestroyOrdered(build=BUILD, attempt=attempt, cell="c", agent=agent, root=BUILD, host="h")


class Wire:
    """A bus that remembers what it was given, and can be made to fail."""

    def __init__(self) -> None:
        self.published: list[Envelope] = []
        self.largest = 0
        self.failures: list[Exception] = []
        self.unheard: set[str] = set()
        self.open = asyncio.Event()
        self.open.set()
        self.tried = asyncio.Event()

    async def publish(self, envelopes: Sequence[Envelope]) -> None:
        self.largest = max(self.largest, len(envelopes))
        self.tried.set()
        await self.open.wait()
        if self.failures:
            raise self.failures.pop(0)
        if any(envelope.key in self.unheard for envelope in envelopes):
            raise Unroutable("nobody hears it")
        self.published += envelopes

    @property
    def numbers(self) -> list[int]:
        return [msgspec.json.decode(each.body)["number"] for each in self.published]

    @property
    def keys(self) -> list[str]:
        return [envelope.key for envelope in self.published]

    async def holds(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE):
            while len(self.published) < count:
                await asyncio.sleep(0.002)


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries come quickly, and the poll so late that a test which waits for it fails."""
    monkeypatch.setattr("bus.outbox.SHORTEST_WAIT", 0.005)
    monkeypatch.setattr("bus.outbox.LONGEST_WAIT", 0.05)
    monkeypatch.setattr("bus.outbox.PARKED_SECONDS", 0.05)
    monkeypatch.setattr("bus.outbox.POLL_SECONDS", 1000.0)


@pytest.fixture
async def store(database: Database) -> Database:
    metadata = MetaData()
    outbox_table(metadata)
    async with database.write() as tx:
        await tx.connection.run_sync(metadata.create_all)
        await tx.execute(text("CREATE TABLE things (id BIGINT)"))
    return database


@pytest.fixture
def outbox(store: Database) -> Outbox:
    return Outbox(store, Clock(now=lambda: 12.5, chance=random.Random(1)), ANNOUNCES)


async def emit(database: Database, *messages: Message) -> None:
    async with database.write() as tx:
        for message in messages:
            tx.emit(message)


async def left(database: Database) -> int:
    async with database.read() as tx:
        return int((await tx.execute(text("SELECT count(*) FROM outbox"))).scalar_one())


async def emptied(database: Database, all_but: int = 0) -> None:
    async with asyncio.timeout(DEADLINE):
        while await left(database) > all_but:
            await asyncio.sleep(0.005)


@asynccontextmanager
async def relaying(*relays: tuple[Outbox, Wire]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(outbox.relay(wire.publish)) for outbox, wire in relays]
    try:
        yield
        assert not any(task.done() for task in tasks), [task.exception() for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_was_committed_is_published_at_once_and_in_order(
    store: Database, outbox: Outbox, wire: Wire
) -> None:
    async with relaying((outbox, wire)):
        await emit(store, changed(1), changed(2))
        await wire.holds(2)
        await emit(store, changed(3))
        await wire.holds(3)
        await emptied(store)
    assert wire.numbers == [1, 2, 3]


async def test_what_was_rolled_back_is_not(store: Database, outbox: Outbox, wire: Wire) -> None:
    with pytest.raises(KeyError):
        async with store.write() as tx:
            tx.emit(changed(1))
            raise KeyError
    await emit(store, changed(2))
    async with relaying((outbox, wire)):
        await wire.holds(1)
    assert wire.numbers == [2]


async def test_the_envelope_is_made_where_it_is_emitted(store: Database, outbox: Outbox, wire: Wire) -> None:
    cause = Envelope(
        id="cause", type="", key="", body=msgspec.Raw(b"{}"), traceparent=f"00-{'a' * 32}-{'b' * 16}-01"
    )
    token = current.set(cause)
    await emit(store, destroy("agent-7", 1))
    current.reset(token)
    async with relaying((outbox, wire)):
        await wire.holds(1)
    (envelope,) = wire.published
    assert (envelope.key, envelope.type) == ("agent.destroy.agent-7", "DestroyOrdered")
    assert (envelope.correlation, envelope.causation, envelope.sent_at) == ("cause", "cause", 12.5)
    assert envelope.traceparent.startswith(f"00-{'a' * 32}-")
    assert msgspec.json.decode(envelope.body, type=DestroyOrdered) == destroy("agent-7", 1)


async def test_only_what_the_worker_announces_can_be_emitted(store: Database, outbox: Outbox) -> None:
    with pytest.raises(Undeclared, match="BuildDeleted is emitted"):
        await emit(store, changed(1), BuildDeleted(build=BUILD, cell="c"))
    store.outbox = None
    with pytest.raises(Undeclared, match="no outbox"):
        await emit(store, changed(1))
    assert await left(store) == 0


async def test_what_another_process_left_behind_is_found(
    store: Database, outbox: Outbox, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.outbox.POLL_SECONDS", 0.02)
    async with relaying((outbox, wire)):
        await emit(store, changed(1))
        await wire.holds(1)
        monkeypatch.setattr(outbox, "wake", lambda: None)  # a commit this process knows nothing of
        await emit(store, changed(2))
        await wire.holds(2)


async def test_a_crowd_goes_in_handfuls(store: Database, outbox: Outbox, wire: Wire) -> None:
    await emit(store, *map(changed, range(600)))
    async with relaying((outbox, wire)):
        await wire.holds(600)
        await emptied(store)
    assert (wire.numbers, wire.largest) == (list(range(600)), 256)


async def test_a_bus_that_is_away_costs_nothing_but_time(store: Database, outbox: Outbox, wire: Wire) -> None:
    wire.failures = [Unavailable("no broker") for _ in range(4)]
    async with relaying((outbox, wire)):
        await emit(store, changed(1))
        await emit(store, changed(2))
        await wire.holds(2)
        await emptied(store)
    assert wire.numbers == [1, 2]


async def test_a_bus_that_never_answers_is_tried_again(
    store: Database, outbox: Outbox, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.outbox.PUBLISH_SECONDS", 0.05)
    wire.open.clear()
    async with relaying((outbox, wire)):
        await emit(store, changed(1))
        await wire.tried.wait()
        wire.tried.clear()
        await wire.tried.wait()
        wire.open.set()
        await wire.holds(1)


async def test_a_key_nobody_hears_holds_up_its_own_messages_only(
    store: Database, outbox: Outbox, wire: Wire
) -> None:
    wire.unheard = {"agent.destroy.gone"}
    async with relaying((outbox, wire)):
        await emit(store, destroy("gone", 1), destroy("here", 1), destroy("gone", 2), destroy("here", 2))
        await emit(store, *(destroy("here", number) for number in range(3, 8)))
        await emptied(store, all_but=2)
        assert wire.keys == ["agent.destroy.here"] * 7
        wire.unheard = set()
        polling = asyncio.ensure_future(poll(outbox))
        await emptied(store)
        polling.cancel()
    by_key = [msgspec.json.decode(e.body)["attempt"] for e in wire.published if e.key.endswith("gone")]
    assert by_key == [1, 2]


async def test_the_messages_of_a_key_stay_in_order_when_it_is_heard_at_last(
    store: Database, outbox: Outbox, wire: Wire
) -> None:
    wire.failures = [Unroutable("the two together"), Unroutable("the first alone")]
    await emit(store, destroy("late", 1), destroy("late", 2))
    async with relaying((outbox, wire)):
        polling = asyncio.ensure_future(poll(outbox))
        await emptied(store)
        polling.cancel()
    assert [msgspec.json.decode(envelope.body)["attempt"] for envelope in wire.published] == [1, 2]


async def test_however_many_nobody_hears_the_others_pass(
    store: Database, outbox: Outbox, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.outbox.PARKED_SECONDS", 1000.0)
    wire.unheard = {"agent.destroy.gone"}
    await emit(store, *(destroy("gone", number) for number in range(1, 301)), destroy("here", 1))
    async with relaying((outbox, wire)):
        await wire.holds(1)
    assert wire.keys == ["agent.destroy.here"]


async def poll(outbox: Outbox) -> None:
    while True:
        outbox.wake()
        await asyncio.sleep(0.01)


async def test_a_relay_that_dies_while_publishing_leaves_it_to_the_next(
    store: Database, outbox: Outbox, wire: Wire
) -> None:
    wire.open.clear()
    async with relaying((outbox, wire)):
        await emit(store, changed(1), changed(2))
        await wire.tried.wait()
    assert await left(store) == 2
    wire.open.set()
    async with relaying((Outbox(store, Clock(), ANNOUNCES), wire)):
        await wire.holds(2)
        await emptied(store)
    assert wire.numbers == [1, 2]


async def test_while_it_publishes_others_write(store: Database, outbox: Outbox, wire: Wire) -> None:
    wire.open.clear()
    async with relaying((outbox, wire)):
        await emit(store, changed(1))
        await wire.tried.wait()
        async with asyncio.timeout(DEADLINE):
            await emit(store, changed(2))
        wire.open.set()
        await wire.holds(2)
    assert wire.numbers == [1, 2]


async def test_an_id_does_not_come_back(store: Database, outbox: Outbox) -> None:
    """A second relay that is slow to delete must not delete a newer message in its place."""
    seen = []
    for number in range(3):
        await emit(store, changed(number))
        async with store.write() as tx:
            seen.append((await tx.execute(text("SELECT id FROM outbox"))).scalar_one())
            await tx.execute(text("DELETE FROM outbox"))
    assert len(set(seen)) == 3


@pytest.fixture
def processes(store: Database, outbox: Outbox, open_database: Open) -> list[tuple[Database, Outbox]]:
    """Three processes on one database."""
    others = [open_database() for _ in range(2)] if store.dialect == "postgresql" else []
    return [(store, outbox), *((other, Outbox(other, Clock(), ANNOUNCES)) for other in others)]


async def test_of_several_processes_one_relays_at_a_time(
    processes: list[tuple[Database, Outbox]], wire: Wire
) -> None:
    turn = asyncio.Lock()  # numbers are given in commit order, as placement gives them
    numbers = iter(range(1000))

    async def write(database: Database) -> None:
        for _ in range(30):
            async with turn:
                await emit(database, changed(next(numbers)))

    async with relaying(*((outbox, wire) for _, outbox in processes)):
        await asyncio.gather(*(write(database) for database, _ in processes))
        await wire.holds(30 * len(processes))
        await emptied(processes[0][0])
    assert wire.numbers == list(range(30 * len(processes)))


@pytest.mark.services
async def test_a_database_that_restarts_costs_nothing_but_time(
    postgres: Postgres, database_url: str, wire: Wire
) -> None:
    database = Database(database_url)
    outbox = Outbox(database, Clock(), ANNOUNCES)
    metadata = MetaData()
    outbox_table(metadata)
    async with database.write() as tx:
        await tx.connection.run_sync(metadata.create_all)
    async with relaying((outbox, wire)):
        await emit(database, changed(1))
        await wire.holds(1)
        await emptied(database)
        wire.open.clear()
        wire.tried.clear()
        await emit(database, changed(2))
        await wire.tried.wait()
        await asyncio.to_thread(postgres.kill)  # published, but not forgotten
        wire.open.set()
        await wire.holds(2)
        await asyncio.to_thread(postgres.start)
        await wire.holds(3)
        await emptied(database)
    assert wire.numbers == [1, 2, 2]
    await database.close()

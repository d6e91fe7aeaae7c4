"""The relay publishes every commit of placement in order and at least once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import text

from bus.errors import Unavailable
from bus.replication import PlacementChanged, ProviderChange
from deploy.servers import Postgres
from placement_worker import Placement
from placement_worker.store import changes
from placement_worker.store.changes import LAST_CHANGE, LAST_REPORTED
from tests.support.ids import uid
from tests.support.placement_builders import a_placement, last_published
from tests.support.waiting import patience


class RememberingBus:
    def __init__(self) -> None:
        self.sent: list[PlacementChanged] = []
        self.handfuls: list[int] = []
        self.tries = 0
        self.failures: list[Exception] = []
        self.open = asyncio.Event()
        self.open.set()

    async def publish(self, *messages: PlacementChanged) -> None:
        self.tries += 1
        await self.open.wait()
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        self.handfuls.append(len(messages))
        self.sent += messages

    @property
    def numbers(self) -> list[int]:
        return [message.number for message in self.sent]

    async def holds(self, number: int) -> None:
        async with patience():
            while number not in self.numbers:
                await asyncio.sleep(0.002)

    async def tried(self, times: int = 1) -> None:
        async with patience():
            while self.tries < times:
                await asyncio.sleep(0.002)


@pytest.fixture
def wire() -> RememberingBus:
    return RememberingBus()


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make retries quick, and the poll so rare that a test that needs the poll fails."""
    monkeypatch.setattr("placement_worker.change_log.SHORTEST_WAIT", 0.005)
    monkeypatch.setattr("placement_worker.change_log.LONGEST_WAIT", 0.05)
    monkeypatch.setattr("placement_worker.change_log.POLL_SECONDS", 1000.0)


@pytest.fixture
async def placement(url: str) -> AsyncIterator[Placement]:
    async with a_placement(url) as one:
        yield one


def a_change(of: int = 1) -> ProviderChange:
    return ProviderChange(uid(of, "a"), uid(of, "a"), 1, {"VCPU": 0})


async def change(placement: Placement, times: int = 1, *, noticed: bool = True) -> None:
    """Commit `times` changes; wake this process's relay unless `noticed` is False, as after a crash."""
    for _ in range(times):
        async with placement.database.write() as tx:
            await changes.announce(tx, changes.CommitRecord(changes=[a_change()]), 1.0)
            if noticed:
                tx.after_commit(placement.log.relay.wake)


async def reported_up_to(placement: Placement, number: int) -> None:
    async with patience():
        while await last_published(placement) < number:
            await asyncio.sleep(0.005)


async def kept(placement: Placement) -> list[int]:
    async with placement.database.read() as tx:
        return [message.number for message in (await changes.since(tx, 0, 1000)).changes]


@asynccontextmanager
async def relaying(*relays: tuple[Placement, RememberingBus]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(placement.log.relay.run(wire.publish)) for placement, wire in relays]
    try:
        yield
        assert not any(task.done() for task in tasks), [task.exception() for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_changes_left_by_another_process_are_published(
    placement: Placement, wire: RememberingBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placement_worker.change_log.POLL_SECONDS", 0.02)
    async with relaying((placement, wire)):
        for number in (1, 2, 3):
            await change(placement, noticed=False)
            await wire.holds(number)
    assert wire.numbers == [1, 2, 3]


async def test_missing_change_numbers_are_skipped(
    placement: Placement, wire: RememberingBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placement_worker.change_log.CHANGES_A_ROUND", 3)
    await change(placement, 8)
    async with placement.database.write() as tx:
        await tx.execute(text("DELETE FROM change_log WHERE number IN (1, 4, 5, 7)"))
    async with relaying((placement, wire)):
        await reported_up_to(placement, 8)
    assert wire.numbers == [2, 3, 6, 8]


async def commit(placement: Placement, times: int = 1, *, urgent: bool = True) -> None:
    for _ in range(times):
        async with placement.database.write() as tx:
            await placement.log.write(tx, changes.CommitRecord(changes=[a_change()]), urgent=urgent)


async def test_changes_that_do_not_fit_in_memory_are_read_from_the_log(
    placement: Placement, wire: RememberingBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placement_worker.change_log.UNPUBLISHED", 3)
    async with relaying((placement, wire)):
        await commit(placement)
        await wire.holds(1)
        wire.open.clear()
        await commit(placement, 8)
        wire.open.set()
        await wire.holds(9)
    assert wire.numbers == list(range(1, 10))


async def test_unconfirmed_changes_are_published_again_from_memory(
    placement: Placement, wire: RememberingBus
) -> None:
    async with relaying((placement, wire)):
        await commit(placement)
        await wire.holds(1)
        wire.failures = [Unavailable("no broker") for _ in range(3)]
        await commit(placement, 2)
        await wire.holds(3)
        await reported_up_to(placement, 3)
    assert wire.numbers == [1, 2, 3]


async def test_a_restored_older_database_is_published_from_its_state(
    placement: Placement, wire: RememberingBus
) -> None:
    async with relaying((placement, wire)):
        await commit(placement, 3)
        await wire.holds(3)
        await commit(placement, 3)
        await reported_up_to(placement, 6)
        async with placement.database.write() as tx:
            await tx.execute(text("DELETE FROM change_log WHERE number > 4"))
            await tx.execute(
                text(f"UPDATE changes SET number = 4 WHERE id IN ({LAST_CHANGE}, {LAST_REPORTED})")
            )
        await commit(placement)
        await reported_up_to(placement, 5)
    assert wire.numbers == [1, 2, 3, 4, 5, 6, 5]


async def test_publishing_is_retried_if_the_bus_does_not_answer(
    placement: Placement, wire: RememberingBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placement_worker.change_log.PUBLISH_SECONDS", 0.05)
    wire.open.clear()
    async with relaying((placement, wire)):
        await change(placement)
        await wire.tried(2)
        assert await last_published(placement) == 0
        wire.open.set()
        await wire.holds(1)
    assert wire.numbers == [1]


async def test_the_next_relay_publishes_the_changes_of_a_killed_relay(
    url: str, placement: Placement, wire: RememberingBus
) -> None:
    wire.open.clear()
    async with relaying((placement, wire)):
        await change(placement, 2)
        await wire.tried()
    assert (wire.sent, await last_published(placement)) == ([], 0)
    wire.open.set()
    async with a_placement(url) as another, relaying((another, wire)):
        await wire.holds(2)
    assert wire.numbers == [1, 2]


@pytest.mark.services
async def test_two_processes_publish_one_after_the_other(database_url: str, wire: RememberingBus) -> None:
    wire.open.clear()
    other_wire = RememberingBus()

    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

    async def waits(process: Placement) -> bool:
        async with process.database.read() as tx:
            query = text(f"{waiting} AND datname = current_database()")
            return bool((await tx.execute(query)).scalar_one())

    async with a_placement(database_url) as one, a_placement(database_url) as other:
        async with relaying((one, wire)):
            await change(one)
            await wire.tried()
            async with relaying((other, other_wire)):
                async with patience():
                    while not await waits(other) and not other_wire.tries:
                        await asyncio.sleep(0.005)
                assert other_wire.tries == 0
                wire.open.set()
                await reported_up_to(one, 1)
                await change(other)
                await other_wire.holds(2)
    assert (wire.numbers, other_wire.numbers) == ([1], [2])


@pytest.mark.services
async def test_a_restart_of_the_database_loses_no_change(
    postgres: Postgres, database_url: str, wire: RememberingBus
) -> None:
    async with a_placement(database_url) as placement, relaying((placement, wire)):
        await change(placement)
        await reported_up_to(placement, 1)
        wire.open.clear()
        await change(placement)
        await wire.tried(2)
        await asyncio.to_thread(postgres.kill)
        wire.open.set()
        await wire.holds(2)
        await asyncio.to_thread(postgres.start)
        await reported_up_to(placement, 2)
        assert wire.numbers == [1, 2]  # the process knows what it has published
        await change(placement)
        await wire.holds(3)
    assert wire.numbers == [1, 2, 3]


@pytest.mark.parametrize(
    ("keep", "unpublished", "up_to", "left"),
    [
        (1, 9, 2, [3, 4]),
        (3, 9, 4, [2, 3, 4]),
        (1, 3, 0, [2, 3, 4]),  # the bus was unreachable for too long
    ],
)
async def test_the_log_keeps_recent_and_unpublished_changes(
    placement: Placement,
    monkeypatch: pytest.MonkeyPatch,
    keep: int,
    unpublished: int,
    up_to: int,
    left: list[int],
) -> None:
    placement.log.keep = keep
    monkeypatch.setattr(changes, "KEEP_UNPUBLISHED", unpublished)
    await change(placement, 4)
    async with placement.database.write() as tx:
        await changes.TELL(tx, number=up_to)
    await placement.log.trim()
    assert await kept(placement) == left

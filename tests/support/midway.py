"""Placement's transactions: stopped halfway while others run, and checked at every commit."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from sqlalchemy import text

from bus.replication import PlacementChanged
from bus.sql.database import Database
from bus.sql.statement import Statement
from bus.sql.transaction import Transaction
from placement_worker import Placement
from placement_worker.store import audit, changes
from tests.support.waiting import until

T = TypeVar("T")


class Gate:
    def __init__(self) -> None:
        self.times = 0
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def stop(self) -> None:
        self.times += 1
        self.reached.set()
        await self.open.wait()

    def before(self, work: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        async def stopped(*given: Any, **more: Any) -> T:
            await self.stop()
            return await work(*given, **more)

        return stopped

    def after(self, work: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        async def stopped(*given: Any, **more: Any) -> T:
            done = await work(*given, **more)
            await self.stop()
            return done

        return stopped


@asynccontextmanager
async def begun(work: Coroutine[Any, Any, T]) -> AsyncIterator["asyncio.Future[T]"]:
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def under_way(gate: Gate, work: Coroutine[Any, Any, T]) -> AsyncIterator["asyncio.Future[T]"]:
    async with begun(work) as task:
        try:
            async with begun(gate.reached.wait()) as arriving:
                first: list[asyncio.Future[Any]] = [task, arriving]
                await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            assert not task.done(), task
            yield task
        finally:
            gate.open.set()
            await asyncio.wait([task])


WAITING = text(
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


async def count(database: Database, query: Any) -> int:
    async with database.read() as tx:
        return int((await tx.execute(query)).scalar_one())


async def waits(placement: Placement, work: "asyncio.Future[Any]") -> None:
    async def waiting() -> int:
        assert not work.done(), work
        return await count(placement.database, WAITING)

    await until(waiting)


_HELD = Statement(
    "SELECT c.uuid, k.name AS class, CAST(SUM(a.used) AS bigint) AS held FROM allocations a"
    " JOIN consumers c ON c.id = a.consumer_id JOIN resource_classes k ON k.id = a.resource_class_id"
    " GROUP BY c.uuid, k.name"
)

Held = dict[str, dict[str, int]]  # consumer → class → how much in all


class EveryCommit:
    def __init__(self) -> None:
        self.commits = 0
        self.broken: list[str] = []
        self.kept: Held = {}

    async def look(self, tx: Transaction) -> None:
        self.commits += 1
        for statement in (audit._USAGE, audit._ORPHANS):
            self.broken += [str(tuple(row)) for row in await statement(tx)]
        if self.kept:
            held: Held = {}
            for uuid, name, amount in await _HELD(tx):
                held.setdefault(uuid, {})[name] = amount
            self.broken += [
                f"{uuid} holds {held.get(uuid)}, not {all_of_it}"
                for uuid, all_of_it in self.kept.items()
                if held.get(uuid) != all_of_it
            ]


@pytest.fixture
def every_commit(monkeypatch: pytest.MonkeyPatch) -> EveryCommit:
    watching = EveryCommit()
    announce: Callable[..., Any] = changes.announce

    async def announced(tx: Transaction, *given: Any) -> tuple[Sequence[PlacementChanged], int]:
        done: tuple[Sequence[PlacementChanged], int] = await announce(tx, *given)
        await watching.look(tx)
        return done

    monkeypatch.setattr(changes, "announce", announced)
    return watching

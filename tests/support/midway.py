"""Stops a transaction halfway while others run, and waits for transactions that wait for a lock."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from sqlalchemy import text

from bus.sql.database import Database
from placement_worker import Placement
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

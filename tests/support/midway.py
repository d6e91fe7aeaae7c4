"""Placement's transactions: stopped halfway while others run, and checked at every commit."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest

from berth.features import added
from berth.kit.audit_records import AuditPart
from berth.operations.stored_claims import breaches
from bus.replication import PlacementChanged
from bus.sql.statement import Statement, Transaction
from placement_worker.store import changes

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


_OVERSOLD = Statement(
    "SELECT p.name, c.name AS class, i.used, i.total, i.reserved, i.allocation_ratio AS ratio"
    " FROM inventories i JOIN resource_providers p ON p.id = i.resource_provider_id"
    " JOIN resource_classes c ON c.id = i.resource_class_id"
    " WHERE i.used < 0 OR i.used > (i.total - i.reserved) * i.allocation_ratio"
)
_HELD = Statement(
    "SELECT c.uuid, k.name AS class, CAST(SUM(a.used) AS bigint) AS held FROM allocations a"
    " JOIN consumers c ON c.id = a.consumer_id JOIN resource_classes k ON k.id = a.resource_class_id"
    " GROUP BY c.uuid, k.name"
)

Held = dict[str, dict[str, int]]  # consumer → resource class → total amount


class EveryCommit:
    def __init__(self) -> None:
        self.commits = 0
        self.broken: list[str] = []
        self.kept: Held = {}

    async def look(self, tx: Transaction) -> None:
        self.commits += 1
        for row in await _OVERSOLD(tx):
            self.broken.append(f"{row['name']}: {row['used']} {row['class']} used of {tuple(row)[3:]}")
        self.broken += await breaches(tx)
        for part in added(AuditPart, "audit"):
            self.broken += await part.breaches(tx)
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

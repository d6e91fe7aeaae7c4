"""Two equal placements on PostgreSQL, one that always locks and one that first tries without locks. Both must
reach the same state.
"""

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text

from bus.claims import Claimed
from bus.names import MakeName, NameKind
from bus.reports import Inventory
from bus.resources import Edit, Edited, MakeProvider, SetAggregates, SetInventories, SetTraits
from bus.sql.database import Database
from bus.sql.transaction import Transaction
from placement_worker import Placement, breaches, metadata
from placement_worker.store import changes
from tests.support import deeds
from tests.support.placement_builders import (
    Wall,
    a_placement,
    a_provider,
    a_report,
    gone,
    keeps_its_index,
    on_hosts,
    seen_by,
)
from tests.support.placement_calls import edit, edit_name

LATER = 10.0  # than all that both worlds begin with
NAMESPACES = ("locked", "calm")
TABLES = [table.name for table in metadata.sorted_tables]


@dataclass(frozen=True)
class TwoProcesses:
    """Two processes on one database."""

    mine: Placement
    other: Placement

    async def level(self) -> None:
        for placement in (self.mine, self.other):
            await placement.memory.fresh()
            await keeps_its_index(placement)


async def furnish(mine: Placement) -> None:
    kinds: list[NameKind] = ["resource class", "trait"]
    for kind in kinds:
        for name in ("CUSTOM_A", "CUSTOM_IDLE"):
            await edit_name(mine, kind, MakeName(name=name))
    first: list[Edit] = [
        MakeProvider(provider=deeds.HOST, name="one"),
        MakeProvider(provider=deeds.CHILD, name="two", parent=deeds.HOST),
        MakeProvider(provider=deeds.LONE, name="four"),
        SetInventories(provider=deeds.HOST, inventories=deeds.STOCK),
        SetInventories(provider=deeds.CHILD, inventories={"VCPU": Inventory(total=4)}),
        SetTraits(provider=deeds.HOST, traits=("COMPUTE_NODE",)),
        SetAggregates(provider=deeds.HOST, aggregates=(deeds.AGGREGATE,)),
    ]
    for one in first:
        assert isinstance(await edit(mine, one), Edited)
    reports = [a_report(7, a_provider(8, 7), traits=("CUSTOM_A",)), a_report(9), gone(9, 2)]
    for report in reports:
        assert await mine.reports.report_many([report]) == [None]
    for consumer, held in ((1, on_hosts(1, VCPU=2)), (2, on_hosts(2, VCPU=1))):
        assert isinstance(await deeds.hold(mine, consumer, held), Claimed)
    await mine.book.aggregates.ensure(mine.database, [deeds.OTHER_AGGREGATE], 0.0)


@asynccontextmanager
async def furnisher(url: str) -> AsyncIterator[Transaction]:
    database = Database(url)
    try:
        async with database.write() as tx:
            yield tx
    finally:
        await database.close()


async def put_by(url: str) -> None:
    for namespace in NAMESPACES:
        async with a_placement(url, Wall().clock, namespace=namespace) as mine:
            mine.providers._calm_at = math.inf
            await furnish(mine)
    async with furnisher(url) as tx:
        await tx.execute(text("CREATE SCHEMA saved"))
        for table in TABLES:
            await tx.execute(text(f"CREATE TABLE saved.{table} AS SELECT * FROM calm.{table}"))


async def put_back(url: str) -> None:
    async with furnisher(url) as tx:
        for namespace in NAMESPACES:
            for table in reversed(TABLES):
                await tx.execute(text(f"DELETE FROM {namespace}.{table}"))
            for table in TABLES:
                await tx.execute(text(f"INSERT INTO {namespace}.{table} SELECT * FROM saved.{table}"))


@asynccontextmanager
async def two_processes(url: str, wall: Wall, namespace: str) -> AsyncIterator[TwoProcesses]:
    """In which all edits lock."""
    async with (
        a_placement(url, wall.clock, namespace=namespace) as mine,
        a_placement(url, wall.clock, namespace=namespace) as other,
    ):
        mine.providers._calm_at = other.providers._calm_at = math.inf
        yield TwoProcesses(mine, other)


@dataclass(frozen=True)
class LockedAndCalm:
    locked: TwoProcesses
    calm: TwoProcesses
    deadlocks: Sequence[str]

    async def agree(self) -> None:
        assert not self.deadlocks
        assert await stored(self.calm.mine) == await stored(self.locked.mine)
        assert await breaches(self.calm.mine.database) == []
        await self.calm.level()
        await self.locked.level()
        assert seen_by(self.calm.mine) == seen_by(self.calm.other) == seen_by(self.locked.mine)


BOOKS = {
    "providers": "SELECT p.uuid, p.name, q.uuid, r.uuid, p.generation, p.shape, p.created_at, p.updated_at"
    " FROM resource_providers p LEFT JOIN resource_providers q ON q.id = p.parent_provider_id"
    " LEFT JOIN resource_providers r ON r.id = p.root_provider_id",
    "inventories": "SELECT p.uuid, c.name, i.total, i.reserved, i.min_unit, i.max_unit, i.step_size,"
    " i.allocation_ratio, i.used, i.created_at, i.updated_at FROM inventories i"
    " LEFT JOIN resource_providers p ON p.id = i.resource_provider_id"
    " LEFT JOIN resource_classes c ON c.id = i.resource_class_id",
    "traits": "SELECT p.uuid, t.name, l.created_at, l.updated_at FROM resource_provider_traits l"
    " LEFT JOIN resource_providers p ON p.id = l.resource_provider_id"
    " LEFT JOIN traits t ON t.id = l.trait_id",
    "aggregates": "SELECT p.uuid, a.uuid, l.created_at, l.updated_at FROM resource_provider_aggregates l"
    " LEFT JOIN resource_providers p ON p.id = l.resource_provider_id"
    " LEFT JOIN aggregates a ON a.id = l.aggregate_id",
    "names": "SELECT id, name FROM resource_classes",
    "allocations": "SELECT c.uuid, c.generation, p.uuid, k.name, a.used FROM allocations a"
    " LEFT JOIN consumers c ON c.id = a.consumer_id"
    " LEFT JOIN resource_providers p ON p.id = a.resource_provider_id"
    " LEFT JOIN resource_classes k ON k.id = a.resource_class_id",
    "hosts": "SELECT * FROM hosts",
    "log": "SELECT number, changes FROM change_log",
    "last": "SELECT id, number FROM changes WHERE id IN (1, 2, 3)",
}


async def stored(placement: Placement) -> Mapping[str, Sequence[Any]]:
    """All that is stored, whatever numbers providers have inside. The log has no gaps."""
    found = {}
    async with placement.database.read() as tx:
        for what, query in BOOKS.items():
            found[what] = sorted(map(tuple, (await tx.execute(text(query))).all()), key=repr)
        last = await changes.last_number(tx)
    # Decoded: in which order a provider's classes are listed is PostgreSQL's choice.
    found["log"] = [(number, json.loads(told)) for number, told in found["log"]]
    assert sorted(number for number, _ in found["log"]) == list(range(1, last + 1))
    return found


@dataclass
class Tries:
    numbers: list[int | None] = field(default_factory=list)
    locks: int = 0  # how often trees were read under locks
    between: Callable[[], Awaitable[object]] | None = None  # once, between the reading and the writing
    between_reads: Callable[[], Awaitable[object]] | None = None

    async def over(self) -> bool:
        return bool(self.numbers)

    def forget(self) -> None:
        self.numbers.clear()
        self.locks = 0

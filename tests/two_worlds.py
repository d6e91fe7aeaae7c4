"""The same placement twice on PostgreSQL, for edits that lock and for those that first try without.

What happens in the one and in the other must leave the same behind.
"""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import text

from bus.messages import EditRequested, NameEditRequested
from bus.resources import (
    AddInventory,
    ChangeProvider,
    DropName,
    DropProvider,
    Edit,
    Edited,
    EditResult,
    MakeName,
    MakeProvider,
    NameEdit,
    NameEdited,
    NameKind,
    NameResult,
    RenameName,
    SetAggregates,
    SetInventories,
    SetTraits,
)
from bus.sql.database import Database, Transaction
from bus.vocabulary import Claimed, Inventory, Released
from placement_worker import Placement, breaches, metadata
from placement_worker.store import changes
from tests.builders import (
    Wall,
    a_claim,
    a_placement,
    a_provider,
    a_release,
    a_report,
    an_order,
    gone,
    keeps_its_index,
    on_hosts,
    seen_by,
    uid,
)

T = TypeVar("T")
Deed = Callable[[Placement], Coroutine[Any, Any, object]]

DEADLINE = 20.0
SOON = 0.5  # less than PostgreSQL lets those wait who wait for one another
LATER = 10.0  # than all that both worlds begin with
NAMESPACES = ("locked", "calm")
TABLES = [table.name for table in metadata.sorted_tables]

A, B, D, E, R, G = (uid(number, "a") for number in (1, 2, 4, 5, 7, 9))
E1, E2 = uid(1, "e"), uid(2, "e")
STOCK = {"VCPU": Inventory(total=8), "MEMORY_MB": Inventory(total=1024, allocation_ratio=1 / 3)}
MORE = {"VCPU": Inventory(total=16, reserved=1), "MEMORY_MB": Inventory(total=2048, step_size=2)}
OURS = Inventory(total=3)


@dataclass(frozen=True)
class TwoProcesses:
    """Two processes on one database."""

    mine: Placement
    other: Placement

    async def level(self) -> None:
        """Both have heard of everything, and what they know is what there is."""
        for one in (self.mine, self.other):
            await one.memory.fresh()
            await keeps_its_index(one)


async def furnish(mine: Placement) -> None:
    """A has a child B, and both are used; D has nothing; somebody reports the tree of R, once that of G."""
    kinds: list[NameKind] = ["resource class", "trait"]
    for kind in kinds:
        for name in ("CUSTOM_A", "CUSTOM_IDLE"):
            await named(mine, kind, MakeName(name=name))
    first: list[Edit] = [
        MakeProvider(provider=A, name="one"),
        MakeProvider(provider=B, name="two", parent=A),
        MakeProvider(provider=D, name="four"),
        SetInventories(provider=A, inventories=STOCK),
        SetInventories(provider=B, inventories={"VCPU": Inventory(total=4)}),
        SetTraits(provider=A, traits=("COMPUTE_NODE",)),
        SetAggregates(provider=A, aggregates=(E1,)),
    ]
    for one in first:
        assert isinstance(await edit(mine, one), Edited)
    reports = [a_report(7, a_provider(8, 7), traits=("CUSTOM_A",)), a_report(9), gone(9, 2)]
    for report in reports:
        assert await mine.providers.report_many([report]) == [None]
    for consumer, held in ((1, on_hosts(1, VCPU=2)), (2, on_hosts(2, VCPU=1))):
        assert isinstance(await claim(mine, consumer, held), Claimed)
    await mine.book.aggregates.ensure(mine.database, [E2], 0.0)


@asynccontextmanager
async def furnisher(url: str) -> AsyncIterator[Transaction]:
    database = Database(url)
    try:
        async with database.write() as tx:
            yield tx
    finally:
        await database.close()


async def put_by(url: str) -> None:
    """What every test begins with."""
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
async def a_world(url: str, wall: Wall, namespace: str) -> AsyncIterator[TwoProcesses]:
    """In which all edits lock."""
    async with (
        a_placement(url, wall.clock, namespace=namespace) as mine,
        a_placement(url, wall.clock, namespace=namespace) as other,
    ):
        mine.providers._calm_at = other.providers._calm_at = math.inf
        yield TwoProcesses(mine, other)


@dataclass(frozen=True)
class LockedAndCalm:
    """The same world twice: in one all edits lock, in the other `mine` is calm from now on."""

    locked: TwoProcesses
    calm: TwoProcesses
    deadlocks: Sequence[str]  # what PostgreSQL had to end: seconds in which perhaps nobody could commit

    async def agree(self) -> None:
        """What is stored, numbered, logged and known is the same in both."""
        assert not self.deadlocks
        assert await books(self.calm.mine) == await books(self.locked.mine)
        assert await breaches(self.calm.mine.database) == []
        await self.calm.level()
        await self.locked.level()
        assert seen_by(self.calm.mine) == seen_by(self.calm.other) == seen_by(self.locked.mine)


async def edit(placement: Placement, one: Edit) -> EditResult:
    async with asyncio.timeout(DEADLINE):
        return (await placement.providers.edit(EditRequested(edit=one))).result


async def until(holds: Callable[[], Awaitable[object]], seconds: float = DEADLINE) -> None:
    async with asyncio.timeout(seconds):
        while not await holds():
            await asyncio.sleep(0.002)


async def named(placement: Placement, kind: NameKind, one: NameEdit) -> NameResult:
    return (await placement.classes_and_traits.edit(NameEditRequested(kind=kind, edit=one))).result


async def claim(placement: Placement, consumer: int, held: Any, generation: int | None = None) -> object:
    order = an_order(a_claim(consumer, held, generation=generation))
    return (await placement.claim_many([order]))[0].results[0]


# What is looked at

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


async def books(placement: Placement) -> Mapping[str, Sequence[Any]]:
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
    """What came of each edit that was tried without locks: its number, None where nothing was done."""

    numbers: list[int | None] = field(default_factory=list)
    locks: int = 0  # how often trees were read under locks
    between: Callable[[], Awaitable[object]] | None = None  # once, between the reading and the writing
    between_reads: Callable[[], Awaitable[object]] | None = None  # once, before ids and names are looked for

    async def over(self) -> bool:
        return bool(self.numbers)

    def forget(self) -> None:
        self.numbers.clear()
        self.locks = 0


# What others do


def claims(provider: int) -> Deed:
    async def disturb(other: Placement) -> None:
        assert isinstance(await claim(other, 9, on_hosts(provider)), Claimed)

    return disturb


async def gives_back(other: Placement) -> None:
    [answer] = await other.release_many([a_release(1, 1)])
    assert isinstance(answer.result, Released)


def edits(*orders: Edit) -> Deed:
    async def disturb(other: Placement) -> None:
        for one in orders:
            assert isinstance(await edit(other, one), Edited)

    return disturb


def names(kind: NameKind, *orders: NameEdit) -> Deed:
    async def disturb(other: Placement) -> None:
        for one in orders:
            assert isinstance(await named(other, kind, one), NameEdited)

    return disturb


def made(provider: str = E, name: str = "five", parent: str | None = None) -> MakeProvider:
    return MakeProvider(provider=provider, name=name, parent=parent)


def stocked(provider: str, generation: int | None = None) -> SetInventories:
    return SetInventories(provider=provider, inventories=MORE, generation=generation)


def with_class(name: str = "CUSTOM_A") -> AddInventory:
    return AddInventory(provider=D, resource_class=name, inventory=OURS)


def with_traits(provider: str, generation: int | None = None) -> SetTraits:
    return SetTraits(provider=provider, traits=("COMPUTE_NODE", "CUSTOM_A"), generation=generation)


def with_aggregates(provider: str, generation: int | None = None) -> SetAggregates:
    return SetAggregates(provider=provider, aggregates=(E1, E2), generation=generation)


GONE = edits(DropProvider(provider=D))
AGAIN = edits(DropProvider(provider=D), made(D, "four"))
UNDER_A = edits(ChangeProvider(provider=D, name="four", parent=A))
RENAMES = RenameName(name="CUSTOM_A", to="CUSTOM_B")
DROPS, MAKES = DropName(name="CUSTOM_A"), MakeName(name="CUSTOM_A")

# Others who are in the middle of it


class Gate:
    """Somebody is stopped in the middle of a transaction, until told to go on."""

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
    """It is over on leaving, in one way or the other."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def under_way(gate: Gate, work: Coroutine[Any, Any, T]) -> AsyncIterator["asyncio.Future[T]"]:
    """It has come to the gate."""
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
    """Until somebody waits for a lock; this work must not end before."""

    async def waiting() -> int:
        assert not work.done(), work
        return await count(placement.database, WAITING)

    await until(waiting)


async def others_can_commit(placement: Placement) -> None:
    """Whoever waits has not locked the number, or soon gives it up."""

    async def free() -> bool:
        async with placement.database.write() as tx:
            query = text("SELECT 1 FROM changes WHERE id = 1 FOR UPDATE SKIP LOCKED")
            return (await tx.execute(query)).first() is not None

    await until(free, SOON)

"""Builders for tests of placement: reports, claims, and a Placement with a new database."""

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from operator import attrgetter
from typing import Any

from msgspec.structs import replace
from sqlalchemy import text

from berth.composition import open_placement
from berth.features import packages
from berth.settings import Settings
from bus.claims import Choice, ClaimRequested, ConsumerClaim, ExpectedGeneration, ReleaseRequested
from bus.clock import Clock
from bus.messages import InventoryReported
from bus.queries import FindCandidates
from bus.reports import Inventory, ProviderReport
from bus.requests import ResourceGroup
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Allocations, Resources
from placement_worker import Memory, Placement
from placement_worker.core.index import Index
from placement_worker.store import changes
from placement_worker.store.changes import LAST_REPORTED
from tests.support.ids import uid


def a_provider(number: int, parent: int | None = None, **given: Any) -> ProviderReport:
    inventories = given.pop("inventories", None) or {"VCPU": Inventory(total=8)}
    return ProviderReport(
        id=uid(number, "a"),
        name=given.pop("name", f"host-{number}"),
        parent=None if parent is None else uid(parent, "a"),
        inventories=inventories,
        **given,
    )


def a_report(
    number: int, *children: ProviderReport, sequence: int = 1, cell: str = "c1", **given: Any
) -> InventoryReported:
    """Return the report of a provider tree: the root with the fields `given`, and its children."""
    return InventoryReported(
        root=uid(number, "a"),
        host=f"host-{number}",
        cell=cell,
        agent=f"agent-{number}",
        sequence=sequence,
        providers=(a_provider(number, **given), *children),
    )


def gone(number: int, sequence: int, cell: str = "c1") -> InventoryReported:
    return replace(a_report(number, sequence=sequence, cell=cell), providers=(), gone=True)


def on_hosts(*hosts: int, **resources: int) -> Allocations:
    return {uid(host, "a"): resources or {"VCPU": 1} for host in hosts}


def a_claim(
    consumer: int,
    *choices: Allocations | Choice,
    project: str = "p1",
    type: str | None = "INSTANCE",
    generation: ExpectedGeneration = None,
    **fields: Any,
) -> ConsumerClaim:
    """Return a claim of user u1; the arguments have numbers in place of consumers' ids."""
    made = tuple(choice if isinstance(choice, Choice) else Choice(choice) for choice in choices)
    for name in fields.keys() & {"keep", "begins", "take_over"}:
        fields[name] = None if fields[name] is None else uid(fields[name])
    fields |= {"consumer": uid(consumer), "generation": generation, "choices": made, "project": project}
    return ConsumerClaim(user="u1", type=type, **fields)


def an_order(*claims: ConsumerClaim) -> ClaimRequested:
    return ClaimRequested(claims=claims)


def a_release(
    consumer: int,
    generation: ExpectedGeneration,
    retire: str = "",
    *,
    keep: int | None = None,
    revivable: bool = False,
) -> ReleaseRequested:
    keeps = None if keep is None else uid(keep)
    return ReleaseRequested(
        consumer=uid(consumer), generation=generation, retire=retire, keep=keeps, revivable=revivable
    )


def looking_for(resources: Resources, *, limit: int = 256, cell: str = "", **demands: Any) -> FindCandidates:
    group = ResourceGroup(resources=resources, **demands)
    return FindCandidates(groups=(group,), limit=limit, cell=cell)


@asynccontextmanager
async def a_placement(
    url: str,
    clock: Clock | None = None,
    settings: Settings | None = None,
    shared: Memory | None = None,
    **options: Any,
) -> AsyncIterator[Placement]:
    database = Database(url, namespace="placement" if url.startswith("postgresql") else "", **options)
    try:
        await migrate(database, *packages("placement"))
        placement = open_placement(settings or Settings(), database, clock or Clock(), shared)
        await placement.start()
        yield placement
    finally:
        await database.close()


@asynccontextmanager
async def racing_placements(
    url: str, count: int = 4, settings: Settings | None = None
) -> AsyncIterator[list[Placement]]:
    """Yield several Placements with one database, as of several processes with retries at random times."""
    async with AsyncExitStack() as stack:
        clocks = [Clock(chance=random.Random(seed)) for seed in range(count)]
        yield [await stack.enter_async_context(a_placement(url, clock, settings)) for clock in clocks]


async def last_published(placement: Placement) -> int:
    """Return the number of the last change that was published."""
    async with placement.database.read() as tx:
        query = text("SELECT number FROM changes WHERE id = :id")
        return int((await tx.execute(query, {"id": LAST_REPORTED})).scalar_one())


async def mark_published(placement: Placement, *, archived: bool = True) -> None:
    """Mark all changes so far as published, as the relay does, and as archived, as an archive does."""
    async with placement.database.write() as tx:
        last = await changes.last_number(tx)
        await changes.TELL(tx, number=last)
        if archived:
            update = text("UPDATE changes SET number = :last WHERE id = :id")
            await tx.execute(update, {"last": last, "id": changes.LAST_ARCHIVED})


async def keeps_its_index(placement: Placement) -> None:
    fresh = open_placement(Settings(), placement.database, placement.clock)
    await fresh.start()
    assert seen_by(placement) == seen_by(fresh)
    assert placement.memory.index.aggregate_facts == fresh.memory.index.aggregate_facts
    assert placement.memory.index.cell_facts == fresh.memory.index.cell_facts
    assert placement.memory.index.seen == fresh.memory.index.seen


def seen_by(placement: Placement) -> Mapping[str, object]:
    return offered_by(placement.memory.index)


_OFFERED = attrgetter(
    "root", "parent", "host", "cell", "agent", "zone", "generation", "shapes", "inventories", "capacity",
    "free", "traits", "aggregates",
)  # fmt: skip


def offered_by(index: Index) -> Mapping[str, object]:
    """Return, by provider, the fields of the index that searches and claims use."""
    return {uuid: _OFFERED(row) for uuid, row in index.rows.items()}

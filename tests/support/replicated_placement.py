"""A placement at work on a bus, and replicas of its memory that know it from the bus alone."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from random import Random

from msgspec import structs

from bus.aggregates import (
    AggregateEdit,
    AggregateEditRequested,
    ChangeAggregate,
    DropAggregate,
    MakeAggregate,
)
from bus.cells import CellEdit, CellEditRequested, DropCell, RegisterCell
from bus.claims import Claimed
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.replication import ChangesFound, FindChanges, PlacementChanged
from bus.reports import Inventory
from bus.resources import ChangeProvider, SetAggregates, SetInventories, SetTraits
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.topics import AGGREGATES, CELLS, CHANGES, PLACEMENT_CHANGED, TREES
from bus.worker import On, on_many
from placement_worker import BusReader, Placement, Replica, placement_worker, replica
from tests.support.buses import Connect, serving
from tests.support.ids import uid
from tests.support.placement_builders import (
    a_claim,
    a_provider,
    a_release,
    a_report,
    an_order,
    gone,
    offered_by,
    seen_by,
)
from tests.support.placement_calls import claim, edit, report
from tests.support.waiting import until

CHILDREN = 100  # a child of host 3 has a number from 300 on
Lose = Callable[[PlacementChanged], bool]


class ReplicatedPlacement:
    """One database; placements come and go, and so do replicas."""

    def __init__(self, connect: Connect, database: Database, stack: AsyncExitStack) -> None:
        self._connect = connect
        self._database = database
        self._stack = stack
        self._serving = AsyncExitStack()
        self.placement: Placement
        self.asked = 0  # how often a replica asked for changes

    async def start(self) -> Placement:
        self.placement = Placement(self._database, Clock())
        await self.placement.start()

        bus = await self._serving.enter_async_context(Bus(self._connect()))
        worker = placement_worker(self.placement, bus.publish, ("c1",))
        await self._serving.enter_async_context(serving(self._connect, worker))
        return self.placement

    async def stop(self) -> None:
        await self._serving.aclose()
        self._serving = AsyncExitStack()

    async def follow(self, lose: Lose | None = None, *, patience: float = 1.0) -> Replica:
        stopping = asyncio.Event()
        bus = await self._stack.enter_async_context(Bus(self._connect()))
        changes = bus.asker(CHANGES, patience)

        async def ask(question: FindChanges) -> ChangesFound:
            self.asked += 1
            return await changes(question)

        described = bus.asker(AGGREGATES, patience), bus.asker(CELLS, patience)
        kept, worker = replica(BusReader(bus.asker(TREES, patience), ask, *described), Clock())
        if lose is not None:
            worker = replace(worker, consumes=[_deafened(kept, lose)])
        group = await self._stack.enter_async_context(asyncio.TaskGroup())
        group.create_task(bus.serve(worker, stopping, drain=0.1))
        self._stack.callback(stopping.set)
        return kept

    async def agrees(self, kept: Replica) -> None:
        here = self.placement.memory
        await here.fresh()
        await kept.loaded()
        await until(lambda: kept.index.seen == here.index.seen, "as far", picture=lambda: kept.index.seen)
        assert offered_by(kept.index) == seen_by(self.placement)
        assert kept.index.aggregate_facts == here.index.aggregate_facts
        assert kept.index.cell_facts == here.index.cell_facts


def _deafened(kept: Replica, lose: Lose) -> On:
    async def handle_many(messages: Sequence[PlacementChanged]) -> Sequence[None]:
        await kept.handle_many([message for message in messages if not lose(message)])
        return [None] * len(messages)

    return on_many(PLACEMENT_CHANGED, handle_many, private=True, concurrency=1)


@asynccontextmanager
async def replicated(connect: Connect, url: str) -> AsyncIterator[ReplicatedPlacement]:
    database = Database(url, namespace="placement" if url.startswith("postgresql") else "")
    try:
        await migrate(database, "placement_worker")
        async with AsyncExitStack() as stack:
            world = ReplicatedPlacement(connect, database, stack)
            try:
                yield world
            finally:
                await world.stop()
    finally:
        await database.close()


class Doings:
    def __init__(self, chance: Random, hosts: int = 6) -> None:
        self._chance = chance
        self._hosts = hosts
        self._sequence = 0
        self._consumers: dict[int, int] = {}

    async def some(self, placement: Placement, times: int) -> None:
        for _ in range(times):
            often = self._report, self._claim, self._claim, self._release
            rarely = self._gone, self._traits, self._aggregates, self._stock
            seldom = (*rarely, self._rename, self._describe, self._cell)
            await self._chance.choice((*often, *often, *seldom))(placement)

    async def _report(self, placement: Placement) -> None:
        chance, host = self._chance, self._chance.randint(1, self._hosts)
        self._sequence += 1
        children = [
            a_provider(host * CHILDREN + position, host, inventories={"CUSTOM_VF": Inventory(total=4)})
            for position in range(chance.choice((0, 0, 1, 3)))
        ]
        await report(
            placement,
            a_report(
                host,
                *children,
                sequence=self._sequence,
                cell=chance.choice(("c1", "c2")),
                traits=chance.choice(((), ("CUSTOM_FAST",), ("CUSTOM_FAST", "HW_CPU_X86_AVX"))),
                aggregates=chance.choice(((), (uid(1, "e"),), (uid(1, "e"), uid(2, "e")))),
                inventories={"VCPU": Inventory(total=chance.choice((8, 16)), allocation_ratio=2.0)},
            ),
        )

    async def _gone(self, placement: Placement) -> None:
        self._sequence += 1
        await report(placement, gone(self._chance.randint(1, self._hosts), self._sequence))

    async def _claim(self, placement: Placement) -> None:
        consumer, host = self._chance.randint(1, 20), self._chance.randint(1, self._hosts)
        order = an_order(
            a_claim(consumer, {uid(host, "a"): {"VCPU": 1}}, generation=self._consumers.get(consumer))
        )
        result = (await claim(placement, order))[0]
        if isinstance(result, Claimed):
            self._consumers[consumer] = result.generation

    async def _release(self, placement: Placement) -> None:
        if self._consumers:
            consumer = self._chance.choice(list(self._consumers))
            generation = self._consumers.pop(consumer)
            await placement.claims.release_many([a_release(consumer, generation)])

    async def _traits(self, placement: Placement) -> None:
        traits = self._chance.choice(((), ("COMPUTE_STATUS_DISABLED",), ("HW_CPU_X86_AVX",)))
        await edit(placement, SetTraits(provider=self._one(), traits=traits))

    async def _aggregates(self, placement: Placement) -> None:
        aggregates = self._chance.choice(((), (uid(3, "e"),)))
        await edit(placement, SetAggregates(provider=self._one(), aggregates=aggregates))

    async def _describe(self, placement: Placement) -> None:
        one, named = uid(self._chance.randint(1, 4), "e"), f"rack-{self._chance.randrange(1000)}"
        edits: tuple[AggregateEdit, ...] = (
            MakeAggregate(aggregate=one, name=named, metadata={"ssd": "yes"}),
            ChangeAggregate(aggregate=one, name=named),
            ChangeAggregate(aggregate=one, set={"availability_zone": named}, add=(self._one(),), force=True),
            DropAggregate(aggregate=one),
        )
        await placement.aggregates.edit(AggregateEditRequested(edit=self._chance.choice(edits)))

    async def _cell(self, placement: Placement) -> None:
        cell, chance = self._chance.choice(("c1", "c2", "c3")), self._chance
        enabled, note = chance.choice((True, False, None)), chance.choice((None, "as it was", "new"))
        edits: tuple[CellEdit, ...] = (
            RegisterCell(cell=cell, enabled=enabled, note=note),
            RegisterCell(cell=cell, enabled=enabled),
            DropCell(cell=cell, force=chance.random() < 0.5),
        )
        await placement.cells.edit(CellEditRequested(edit=chance.choice(edits)))

    async def _stock(self, placement: Placement) -> None:
        stock = {"VCPU": Inventory(total=self._chance.choice((8, 32)), allocation_ratio=1 / 3)}
        stock |= self._chance.choice(({}, {"DISK_GB": Inventory(total=100, reserved=1, step_size=5)}))
        await edit(placement, SetInventories(provider=self._one(), inventories=stock))

    async def _rename(self, placement: Placement) -> None:
        """Or hang it below another."""
        provider, parent = self._one(), self._one()
        name = f"renamed-{self._chance.randrange(1000)}"
        change = ChangeProvider(provider=provider, name=name)
        if self._chance.random() < 0.5:
            change = structs.replace(change, parent=parent)
        await edit(placement, change)

    def _one(self) -> str:
        return uid(self._chance.randint(1, self._hosts), "a")

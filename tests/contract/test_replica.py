"""A replica equals placement's index after lost messages and outages."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from random import Random

import pytest
from msgspec import structs

from berth.composition import open_placement
from berth.features import packages
from berth.settings import Settings
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
from bus.errors import Unavailable
from bus.messages import BuildPlaced, BuildRequested
from bus.replication import ChangesFound, FindChanges, FindTrees, PlacementChanged, TreesFound
from bus.reports import Inventory
from bus.requests import Flavor
from bus.resources import ChangeProvider, SetAggregates, SetInventories, SetTraits
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.topics import AGGREGATES, CELLS, CHANGES, PLACEMENT_CHANGED, TREES
from bus.worker import On, on_many
from placement_worker import BusReader, IndexedSource, Placement, Replica, placement_worker, replica
from placement_worker.lookups import Lookups
from scheduler_worker import RequestOptions
from tests.support.buses import Connect, serving
from tests.support.ids import uid
from tests.support.placement_builders import (
    a_claim,
    a_provider,
    a_release,
    a_report,
    an_order,
    gone,
    mark_published,
    offered_by,
    on_hosts,
    seen_by,
)
from tests.support.placement_calls import claim, edit, report
from tests.support.schedulers import scheduler_of
from tests.support.waiting import DEADLINE, in_time, until

CHILDREN = 100  # a child of host 3 has a number from 300 on
Lose = Callable[[PlacementChanged], bool]


class ReplicatedPlacement:
    """A database of placement, with placement workers and replicas that a test starts and stops."""

    def __init__(self, connect: Connect, database: Database, stack: AsyncExitStack) -> None:
        self._connect = connect
        self._database = database
        self._stack = stack
        self._serving = AsyncExitStack()
        self.placement: Placement
        self.asked = 0  # how often a replica asked for changes

    async def start(self) -> Placement:
        self.placement = open_placement(Settings(), self._database, Clock())
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
        await migrate(database, *packages("placement"))
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
            seldom = (self._gone, *[self._edit] * 4, self._describe, self._cell)
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

    async def _edit(self, placement: Placement) -> None:
        chance, provider = self._chance, self._one()
        stock = {"VCPU": Inventory(total=chance.choice((8, 32)), allocation_ratio=1 / 3)}
        stock |= chance.choice(({}, {"DISK_GB": Inventory(total=100, reserved=1, step_size=5)}))
        traits = chance.choice(((), ("COMPUTE_STATUS_DISABLED",), ("HW_CPU_X86_AVX",)))
        renamed = ChangeProvider(provider=provider, name=f"renamed-{chance.randrange(1000)}")
        edits = (
            SetTraits(provider=provider, traits=traits),
            SetAggregates(provider=provider, aggregates=chance.choice(((), (uid(3, "e"),)))),
            SetInventories(provider=provider, inventories=stock),
            chance.choice((renamed, structs.replace(renamed, parent=self._one()))),
        )
        await edit(placement, chance.choice(edits))

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

    def _one(self) -> str:
        return uid(self._chance.randint(1, self._hosts), "a")


# Each type of broker and each type of database once: other combinations behave the same.
pytestmark = pytest.mark.parametrize(
    ("connect", "url"),
    [
        pytest.param("local", "postgresql", marks=pytest.mark.services),
        pytest.param("rabbit", "sqlite", marks=pytest.mark.services),
    ],
    indirect=True,
)


@pytest.fixture
async def world(connect: Connect, url: str) -> AsyncIterator[ReplicatedPlacement]:
    async with replicated(connect, url) as made:
        yield made


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placement_worker.replicas.POLL_SECONDS", 0.05)


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placement_worker.replicas.POLL_SECONDS", 1000.0)


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placement_worker.core.trees.CARRIED", 0)


@pytest.mark.parametrize("seed", range(2))
async def test_a_replica_follows_random_changes(world: ReplicatedPlacement, seed: int, never: None) -> None:
    placement = await world.start()
    doings = Doings(Random(seed))
    await doings.some(placement, 10)
    kept = await world.follow()
    for _ in range(4):
        await doings.some(placement, 15)
        await in_time(world.agrees(kept))


@pytest.mark.parametrize("seed", range(1))
async def test_a_replica_follows_by_queries_alone(
    world: ReplicatedPlacement, seed: int, never: None, asked_for: None
) -> None:
    placement = await world.start()
    kept = await world.follow()
    await Doings(Random(seed)).some(placement, 40)
    await in_time(world.agrees(kept))


@pytest.mark.parametrize("seed", range(2))
async def test_a_replica_loads_during_changes(world: ReplicatedPlacement, seed: int, never: None) -> None:
    placement = await world.start()
    doings = Doings(Random(seed), hosts=12)
    await doings.some(placement, 30)
    kept = await world.follow()
    await doings.some(placement, 60)
    await in_time(world.agrees(kept))


async def test_a_lost_change_is_read_when_the_next_change_arrives(
    world: ReplicatedPlacement, never: None
) -> None:
    placement = await world.start()
    await report(placement, a_report(1), a_report(2))
    doomed, lost = placement.memory.index.seen + 1, asyncio.Event()

    def lose(message: PlacementChanged) -> bool:
        if message.number == doomed:
            lost.set()
        return message.number == doomed

    kept = await world.follow(lose)
    await kept.loaded()
    await claim(placement, an_order(a_claim(1, on_hosts(1))))
    await in_time(lost.wait())
    assert kept.index.seen < doomed
    await claim(placement, an_order(a_claim(2, on_hosts(2))))
    await in_time(world.agrees(kept))


async def test_a_scheduler_asks_placement_before_it_reports_no_host(
    world: ReplicatedPlacement, never: None
) -> None:
    placement = await world.start()
    kept = await world.follow(lambda _: True)
    await kept.loaded()

    options = RequestOptions(tenant_aggregates=True, tenant_aggregates_required=True)
    place_many = scheduler_of(placement, source=IndexedSource(kept), requests=options).place_many
    flavor = Flavor(name="small", vcpus=1)

    async def hosts(number: int) -> list[str]:
        request = BuildRequested(
            request=uid(number, "d"), instances=(uid(number, "b"),), flavor=flavor, project="p"
        )
        (reply,) = await place_many([request])
        assert isinstance(reply, list | tuple), reply
        return [one.chosen.host for one in reply if isinstance(one, BuildPlaced)]

    await report(placement, a_report(1, aggregates=(uid(1, "e"),)))
    assert await hosts(1) == []
    assert (kept.index.seen, world.asked) == (placement.memory.index.seen, 2)  # one query at the start
    allowed = MakeAggregate(aggregate=uid(1, "e"), name="of p", metadata={"filter_tenant_id": "p"})
    await placement.aggregates.edit(AggregateEditRequested(edit=allowed))
    assert await hosts(2) == ["host-1"]
    assert world.asked == 3
    assert await hosts(3) == ["host-1"]
    assert world.asked == 3


async def test_a_lost_last_change_is_read_at_the_next_poll(world: ReplicatedPlacement, soon: None) -> None:
    placement = await world.start()
    await report(placement, a_report(1))
    kept = await world.follow(lambda _: True)
    await kept.loaded()
    await claim(placement, an_order(a_claim(1, on_hosts(1))))
    await report(placement, a_report(2))
    await in_time(world.agrees(kept))


async def test_a_replica_waits_for_placement_and_logs_it_once(
    world: ReplicatedPlacement, caplog: pytest.LogCaptureFixture
) -> None:
    def reply() -> list[str]:
        words = (re.search("does not answer|answers again", record.message) for record in caplog.records)
        return [found[0] for found in words if found]

    with caplog.at_level(logging.INFO, "placement_worker.replicas"):
        kept = await world.follow()
        await until(lambda: world.asked > 2)
        with pytest.raises(Unavailable, match="has not been read"):
            _ = kept.index
        assert reply() == ["does not answer"]
        placement = await world.start()
        await report(placement, a_report(1))
        await in_time(world.agrees(kept))
    # On a slow machine, placement may answer in time and then be too slow again.
    assert reply() == ["does not answer", "answers again"] * (len(reply()) // 2)


async def test_a_replica_reloads_if_missed_changes_are_pruned(world: ReplicatedPlacement, soon: None) -> None:
    placement = await world.start()
    placement.log.keep = 2
    await report(placement, a_report(1))
    kept = await world.follow()
    await in_time(world.agrees(kept))
    before = kept.index
    await world.stop()
    await Doings(Random(3)).some(placement, 30)
    await mark_published(placement)
    await placement.log.trim()
    await world.start()
    await in_time(world.agrees(kept))
    assert kept.index is not before


async def test_another_database_is_detected_by_decreasing_change_numbers(
    world: ReplicatedPlacement, soon: None, caplog: pytest.LogCaptureFixture
) -> None:
    placement = await world.start()
    await report(placement, a_report(1), a_report(2))
    kept = await world.follow()
    await in_time(world.agrees(kept))
    kept.index.seen += 100
    await until(lambda: "its database is a different one" in caplog.text)
    await in_time(world.agrees(kept))


async def test_many_reported_trees_are_read_with_few_queries(
    world: ReplicatedPlacement, monkeypatch: pytest.MonkeyPatch, never: None, asked_for: None
) -> None:
    asked: list[int] = []
    all_reported = asyncio.Event()
    lookup = Lookups.trees

    async def counted(self: Lookups, query: FindTrees) -> TreesFound:
        asked.append(len(query.roots))
        if len(asked) > 1:
            await all_reported.wait()
        return await lookup(self, query)

    monkeypatch.setattr(Lookups, "trees", counted)
    placement = await world.start()
    kept = await world.follow(patience=DEADLINE)
    await in_time(kept.loaded())
    for number in range(1, 201):
        await report(placement, a_report(number))
    await until(lambda: len(asked) > 1)
    all_reported.set()
    await in_time(world.agrees(kept))
    assert len(asked) < 50  # of 200 trees: changes arrive in portions, smaller ones on a busy machine
    assert sum(asked) == 200


async def test_a_tree_larger_than_an_answer_comes_in_parts(
    world: ReplicatedPlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placement_worker.lookups.ROOM", 2000)
    placement = await world.start()
    below = [a_provider(1000 + number, 1) for number in range(100)]
    await report(placement, a_report(1, *below), a_report(2), a_report(3))
    kept = await world.follow()
    await in_time(world.agrees(kept))
    assert len(kept.index.trees[uid(1, "a")]) == 101
    await report(placement, a_report(1, *below, a_provider(1200, 1), sequence=2))
    await in_time(world.agrees(kept))

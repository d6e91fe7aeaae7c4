"""A replica equals placement's index after lost messages and outages."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from random import Random

import pytest

from bus.aggregates import AggregateEditRequested, MakeAggregate
from bus.errors import Unavailable
from bus.messages import BuildPlaced, BuildRequested
from bus.replication import FindTrees, PlacementChanged, TreesFound
from bus.requests import Flavor
from bus.resources import LoadProviders
from placement_worker import IndexedSource
from placement_worker.lookups import Lookups
from placement_worker.store import changes
from scheduler_worker import RequestOptions
from tests.support.buses import Connect
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_load, a_report, an_order, on_hosts, tell_all
from tests.support.placement_calls import claim, report
from tests.support.replicated_placement import Doings, ReplicatedPlacement, replicated
from tests.support.schedulers import scheduler_of
from tests.support.waiting import DEADLINE, in_time, until

# Each broker, and each database placement may have; what it does on the one is not the other's business.
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


@pytest.mark.parametrize("seed", range(4))
async def test_a_replica_follows_random_changes(world: ReplicatedPlacement, seed: int, never: None) -> None:
    placement = await world.start()
    doings = Doings(Random(seed))
    await doings.some(placement, 10)
    kept = await world.follow()
    for _ in range(4):
        await doings.some(placement, 15)
        await in_time(world.agrees(kept))


@pytest.mark.parametrize("seed", range(2))
async def test_a_replica_follows_by_queries_alone(
    world: ReplicatedPlacement, seed: int, never: None, asked_for: None
) -> None:
    placement = await world.start()
    kept = await world.follow()
    await Doings(Random(seed)).some(placement, 40)
    await in_time(world.agrees(kept))


@pytest.mark.parametrize("seed", range(3))
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
        (said,) = await place_many([request])
        assert isinstance(said, list | tuple), said
        return [one.chosen.host for one in said if isinstance(one, BuildPlaced)]

    await report(placement, a_report(1, aggregates=(uid(1, "e"),)))
    assert await hosts(1) == []
    assert (kept.index.seen, world.asked) == (placement.memory.index.seen, 2)  # once when it was read
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
    def said() -> list[str]:
        words = (re.search("does not answer|answers again", record.message) for record in caplog.records)
        return [found[0] for found in words if found]

    with caplog.at_level(logging.INFO, "placement_worker.replicas"):
        kept = await world.follow()
        await until(lambda: world.asked > 2)
        with pytest.raises(Unavailable, match="has not been read"):
            _ = kept.index
        assert said() == ["does not answer"]
        placement = await world.start()
        await report(placement, a_report(1))
        await in_time(world.agrees(kept))
    # On a slow machine it may answer, and then once more be too slow.
    assert said() == ["does not answer", "answers again"] * (len(said()) // 2)


async def test_a_replica_reloads_if_missed_changes_are_pruned(
    world: ReplicatedPlacement, soon: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "KEEP", 2)
    placement = await world.start()
    await report(placement, a_report(1))
    kept = await world.follow()
    await in_time(world.agrees(kept))
    before = kept.index
    await world.stop()
    await Doings(Random(3)).some(placement, 30)
    await tell_all(placement)
    await placement.log.trim()
    await world.start()
    await in_time(world.agrees(kept))
    assert kept.index is not before


async def test_another_database_is_noticed_by_numbers_that_go_back(
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
    assert len(asked) < 8
    assert sum(asked) == 200


async def test_a_tree_larger_than_an_answer_comes_in_parts(
    world: ReplicatedPlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placement_worker.lookups.ROOM", 2000)
    placement = await world.start()
    below = [a_load(1000 + number, 1) for number in range(100)]
    await placement.bulk_load.load(LoadProviders(providers=(a_load(1), *below, a_load(2), a_load(3))))
    kept = await world.follow()
    await in_time(world.agrees(kept))
    assert len(kept.index.trees[uid(1, "a")]) == 101
    await placement.bulk_load.load(LoadProviders(providers=(a_load(1200, 1),)))
    await in_time(world.agrees(kept))

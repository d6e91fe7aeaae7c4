"""A report that moves allocations does so in one commit or not at all, and over-allocates nothing."""

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from berth.operations.audit import placement_breaches
from bus.claims import Choice, Claimed, Released, ReleaseRequested, holder_consumer
from bus.errors import Unavailable
from bus.messages import BuildReshaped, InventoryReported
from bus.reports import GuestPlace, Inventory, InventoryMove, Reshaping
from bus.resources import FindAllocations
from bus.sql.database import Database
from bus.vocabulary import Allocations, Contended, Message
from placement_worker import Placement
from placement_worker.store import reshapes
from tests.support.ids import uid
from tests.support.midway import EveryCommit, Gate, T, every_commit
from tests.support.placement_builders import (
    a_claim,
    a_placement,
    a_provider,
    a_release,
    a_report,
    an_order,
    on_hosts,
)
from tests.support.placement_calls import claim, find_providers, make_providers, report
from tests.support.waiting import in_time, until


@asynccontextmanager
async def started(work: Coroutine[Any, Any, T]) -> AsyncIterator["asyncio.Future[T]"]:
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def under_way(gate: Gate, work: Coroutine[Any, Any, T]) -> AsyncIterator["asyncio.Future[T]"]:
    async with started(work) as task:
        try:
            async with started(gate.reached.wait()) as arriving:
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


__all__ = ["every_commit"]

HOST, CELL0, CELL1 = (uid(number, "a") for number in (1, 2, 3))


def has(**totals: int) -> dict[str, Inventory]:
    return {name: Inventory(total=total) for name, total in totals.items()}


def flat(sequence: int = 1, **more: Any) -> InventoryReported:
    return a_report(1, sequence=sequence, inventories=has(VCPU=16, MEMORY_MB=64, DISK_GB=100), **more)


def in_cells(sequence: int = 2, *guests: GuestPlace, each: int = 8, move: bool = True) -> InventoryReported:
    below = [a_provider(n, 1, inventories=has(VCPU=each, MEMORY_MB=4 * each)) for n in (2, 3)]
    reply = a_report(1, *below, sequence=sequence, inventories=has(DISK_GB=100))
    to = (CELL0, CELL1)
    moves = tuple(InventoryMove(provider=HOST, resource_class=name, to=to) for name in ("VCPU", "MEMORY_MB"))
    return replace(reply, reshape=Reshaping(moves=moves, guests=guests) if move else None)


def flat_again(sequence: int) -> InventoryReported:
    moves = tuple(
        InventoryMove(provider=cell, resource_class=name, to=(HOST,))
        for cell in (CELL0, CELL1)
        for name in ("VCPU", "MEMORY_MB")
    )
    return replace(flat(sequence), reshape=Reshaping(moves=moves))


def of_host(vcpus: int, disk: int = 0) -> Allocations:
    return {HOST: {"VCPU": vcpus, "MEMORY_MB": 4 * vcpus, **({"DISK_GB": disk} if disk else {})}}


async def held(placement: Placement, *consumers: int) -> list[Allocations]:
    names = tuple(uid(consumer) for consumer in consumers)
    found = {
        consumer.id: consumer.allocations
        for consumer in (await placement.lookups.allocations(FindAllocations(consumers=names))).consumers
    }
    return [found.get(name, {}) for name in names]


async def sent(placement: Placement) -> list[BuildReshaped]:
    reply: list[BuildReshaped] = []

    async def publish(*messages: Message) -> None:
        reply.extend(message for message in messages if isinstance(message, BuildReshaped))

    await placement.reports.reshaped_builds._round(publish)
    return reply


async def test_conductors_are_informed_of_reshaped_builds_until_confirmed(placement: Placement) -> None:
    await report(placement, flat())
    kept = a_claim(3, of_host(1), type="CLEANUP")
    client = a_claim(4, of_host(1))
    client = replace(client, client=True)
    stays = a_claim(2, {HOST: {"DISK_GB": 1}})
    moved = a_claim(5, of_host(1), type="MIGRATION")
    await claim(placement, an_order(a_claim(1, of_host(2, 10)), stays, kept, client, moved))
    await report(placement, in_cells())
    [one] = await find_providers(placement, ids=(HOST,), parts=("owner",))

    async def away(*messages: Message) -> None:
        raise Unavailable("the bus is away")

    for _ in range(2):  # killed or disconnected before the bus has confirmed the message
        with pytest.raises(Unavailable):
            await placement.reports.reshaped_builds._round(away)
    reply = await sent(placement)
    assert reply == [
        BuildReshaped(
            build=uid(1),
            cell="c1",
            root=HOST,
            generation=1,
            number=placement.memory.index.seen,
            at=placement.clock.now(),
            allocations={HOST: {"DISK_GB": 10}, CELL0: {"VCPU": 2, "MEMORY_MB": 8}},
        )
    ]
    assert one.sequence == 2
    assert await sent(placement) == []


# Restrictions of a cell


async def test_a_reported_reshape_moves_allocations_of_its_tree_only(placement: Placement) -> None:
    theirs = a_report(5, inventories=has(VCPU=8))
    await report(placement, flat(), theirs)
    await claim(placement, an_order(a_claim(1, on_hosts(5, VCPU=2))))
    says = in_cells()
    assert says.reshape is not None
    grab = InventoryMove(provider=uid(5, "a"), resource_class="VCPU", to=(CELL0,))
    [why] = await report(placement, replace(says, reshape=replace(says.reshape, moves=(grab,))))
    assert why == f"InventoryReported: reshape.moves: {uid(5, 'a')} belongs to the tree of {uid(5, 'a')}"
    [done] = await placement.reports.report_many([replace(says, cell="c2")], cell="c2")
    assert "it is of cell c1" in str(done)
    assert await held(placement, 1) == [on_hosts(5, VCPU=2)]
    assert [provider.id for provider in await find_providers(placement, in_tree=HOST)] == [HOST]


async def test_a_cell_sees_the_holders_of_its_own_hosts_only(placement: Placement) -> None:
    await make_providers(
        placement, a_provider(7, inventories=has(DISK_GB=50), traits=("MISC_SHARES_VIA_AGGREGATE",))
    )
    await report(placement, flat(), a_report(5, cell="c2"))
    beside = {**of_host(2), **on_hosts(7, DISK_GB=5)}
    both = {**of_host(1), **on_hosts(5, VCPU=1)}
    await claim(placement, an_order(a_claim(1, beside)), an_order(a_claim(2, on_hosts(5, VCPU=1))),
                an_order(a_claim(3, on_hosts(7, DISK_GB=1))), an_order(a_claim(4, both)))  # fmt: skip
    everybody = tuple(uid(one) for one in range(1, 6))
    found = await placement.lookups.allocations(FindAllocations(consumers=everybody), cell="c1")
    assert {consumer.id: consumer.allocations for consumer in found.consumers} == {uid(1): beside}
    assert found.generations.keys() == beside.keys()
    here = await placement.lookups.allocations(FindAllocations(providers=(HOST, uid(5, "a"))), cell="c2")
    assert [consumer.id for consumer in here.consumers] == [uid(2)]


@pytest.mark.threads
async def test_concurrent_claims_swaps_and_releases_lose_nothing(
    url: str, placement: Placement, every_commit: EveryCommit
) -> None:
    """Two processes make claims for the shape last read, swaps to holder consumers, and releases."""
    chance = random.Random(7)
    await report(placement, flat(), a_report(5, inventories=has(VCPU=16, MEMORY_MB=64)))
    stayers = [await claimed_some(placement, number, of_host(1, 1)) for number in (901, 902, 903)]
    every_commit.kept = {stayer: {"VCPU": 1, "MEMORY_MB": 4, "DISK_GB": 1} for stayer in stayers}
    over: list[bool] = []
    turn = asyncio.Event()  # for another reshape
    seen: list[str] = []

    async with a_placement(url) as other:

        async def instances(numbers: Sequence[int], by: Placement) -> None:
            for number in numbers:
                got: Any = None
                while not isinstance(got, Claimed):
                    await by.memory.fresh()
                    where = chance.choice(shapes_of(by))
                    [got] = await claim(by, an_order(a_claim(number, where)))
                    seen.append(type(got).__name__)
                generation = got.generation
                turn.set()
                if chance.random() < 0.4:
                    swap = a_claim(number, on_hosts(5, VCPU=1, MEMORY_MB=4), generation=generation)
                    swap = replace(swap, keep=holder_consumer(uid(number), 1))
                    [swapped] = await claim(by, an_order(swap))
                    if isinstance(swapped, Claimed):
                        generation = swapped.generation
                        beside = replace(a_release(number, "any"), consumer=holder_consumer(uid(number), 1))
                        await released(by, beside)
                await released(by, a_release(number, generation))

        async def reshapes() -> int:
            sequence = 1
            while not over:
                await turn.wait()
                turn.clear()
                for says in (in_cells(sequence + 1), flat_again(sequence + 2)):
                    seen.append((await report(placement, says))[0])
                sequence += 2
            return sequence

        reshaping = asyncio.create_task(reshapes())
        await asyncio.gather(
            *(instances(range(100 * n, 100 * n + 6), by) for n, by in enumerate((placement, other) * 2, 1))
        )
        over.append(True)
        turn.set()
        sequence = await in_time(reshaping)
    assert every_commit.broken == []
    assert sequence > 10 and seen.count("Claimed") == 4 * 6
    assert all("fits nowhere" in one for one in seen if one.startswith("InventoryReported"))
    await report(placement, flat_again(sequence + 1))
    assert await held(placement, 901, 902, 903) == [of_host(1, 1)] * 3
    root = (await find_providers(placement, ids=(HOST,)))[0]
    assert root.used == {"VCPU": 3, "MEMORY_MB": 12, "DISK_GB": 3}
    assert await placement_breaches(placement.database) == []
    await placement.memory.fresh()


async def released(by: Placement, order: ReleaseRequested) -> None:
    done: Any = Contended()
    while isinstance(done, Contended):  # because the host is reshaped repeatedly
        done = (await by.claims.release_many([order]))[0].result
    assert isinstance(done, Released), done


async def claimed_some(placement: Placement, number: int, where: Allocations) -> str:
    [got] = await claim(placement, an_order(a_claim(number, where)))
    assert isinstance(got, Claimed), got
    return uid(number)


def shapes_of(placement: Placement) -> list[Choice]:
    rows = placement.memory.index.rows
    found = [
        Choice({row.uuid: {"VCPU": 1, "MEMORY_MB": 4}}, dict(row.shapes))
        for row in rows.values()
        if row.root == HOST and "VCPU" in row.inventories
    ]
    return found or [Choice(of_host(1))]


GOES_ON = {
    "gives back": lambda placement: placement.claims.release_many([a_release(1, 1)]),
    "swaps": lambda placement: placement.claims.claim_many(
        [an_order(a_claim(1, on_hosts(5, VCPU=2), generation=1, keep=9))]
    ),
}


@pytest.mark.services
@pytest.mark.parametrize("goes_on", GOES_ON.values(), ids=GOES_ON)
@pytest.mark.parametrize(
    "back", [False, True], ids=["its provider has another shape", "its provider is gone"]
)
async def test_a_claim_on_a_concurrently_reshaped_provider_reads_it_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch, gate: Gate, goes_on: Any, back: bool
) -> None:
    """On PostgreSQL, the claim waits for the old providers, which the reshape has locked."""
    async with a_placement(database_url) as placement:
        await report(placement, flat(), a_report(5))
        await claim(placement, an_order(a_claim(1, of_host(2)), a_claim(2, of_host(3))))
        if back:
            await report(placement, in_cells())
        monkeypatch.setattr(reshapes, "read_holders", gate.before(reshapes.read_holders))
        says = flat_again(3) if back else in_cells()
        async with (
            under_way(gate, report(placement, says)) as reporting,
            started(goes_on(placement)) as going,
        ):
            await waits(placement, going)
            gate.open.set()
            assert await in_time(reporting) == [""]
            [done] = await in_time(going)
            assert isinstance(getattr(done, "result", None) or done.results[0], Released | Claimed)
        second = of_host(3)[HOST]
        assert (await held(placement, 2)) == [{HOST if back else CELL0: second}]
        first = {HOST if back else CELL0: of_host(2)[HOST]}
        assert await held(placement, 1, 9) in ([{}, {}], [on_hosts(5, VCPU=2), first])
        assert await placement_breaches(placement.database) == []

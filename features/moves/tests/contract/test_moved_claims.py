"""Moves on both databases: one claim begins a move once, and a holder keeps the source for a revert."""

import asyncio
import random
from typing import Any

import pytest
from msgspec.structs import replace

from berth.operations.audit import placement_breaches
from berth.operations.stored_claims import retired
from bus.claims import CLEANUP, MIGRATION, STARTED, Choice, Claimed, ClaimRequested, Held, Released, Retired
from bus.clock import Clock
from bus.messages import Selection
from bus.reports import SHARES, Inventory
from bus.requests import Flavor
from bus.resources import FindAllocations
from bus.vocabulary import Allocations, Contended
from features.moves.messages import SHELVED, MovePlaced, MoveRefused
from features.moves.tests.support.move_builders import Cells, a_build_that_stands, a_move
from features.moves.tests.support.moves_of_schedulers import moves_of
from placement_worker import Placement
from placement_worker.store import changes
from tests.support.ids import uid
from tests.support.midway import EveryCommit, every_commit
from tests.support.placement_builders import (
    a_claim,
    a_placement,
    a_release,
    a_report,
    an_order,
    on_hosts,
    seen_by,
)
from tests.support.placement_calls import claim
from tests.support.schedulers import scheduler_of

__all__ = ["every_commit"]

H1, H2, H3 = (uid(number, "a") for number in (1, 2, 3))
BUILD, KEEP, LEFT, MOVE = 1, 100, 101, 500
BEGAN = Retired(why=STARTED)
FIVE = {"VCPU": 5}


@pytest.fixture(autouse=True)
async def hosts(placement: Placement) -> None:
    """Report three hosts with eight VCPUs each; the build is on host 1."""
    await placement.reports.report_many([a_report(number) for number in (1, 2, 3)])
    [done] = await claim(placement, an_order(a_claim(BUILD, on_hosts(1, **FIVE), project="mine")))
    assert isinstance(done, Claimed)


def moves(
    to: int = 2, *others: int, move: int = MOVE, generation: int | None = 1, **more: Any
) -> ClaimRequested:
    choices = [on_hosts(one, **FIVE) for one in (to, *others)]
    given: dict[str, Any] = {"keep": KEEP, "begins": move, "project": "mine"} | more
    return an_order(a_claim(BUILD, *choices, generation=generation, **given))


def is_returning(*, generation: int = 2, other: int = KEEP, **more: Any) -> ClaimRequested:
    return an_order(
        a_claim(BUILD, {}, generation=generation, take_over=other, **({"project": "mine"} | more))
    )


async def release(placement: Placement, *args: Any, **more: Any) -> Any:
    [answer] = await placement.claims.release_many([a_release(*args, **more)])
    return answer.result


async def held(placement: Placement) -> dict[int, tuple[Allocations, str | None, str]]:
    names = {uid(one): one for one in (BUILD, 2, 3, KEEP, LEFT, MOVE)}
    found = await placement.lookups.allocations(FindAllocations(consumers=tuple(names)))
    return {
        names[consumer.id]: (
            {provider: dict(amounts) for provider, amounts in consumer.allocations.items()},
            consumer.type,
            consumer.project,
        )
        for consumer in found.consumers
        if consumer.allocations
    }


async def reported(placement: Placement, after: int) -> set[str]:
    """Return the providers that changed after this change number."""
    async with placement.database.read() as tx:
        sent = (await changes.since(tx, after, 10)).changes
    return {change.provider for one in sent for change in one.changes}


async def over(placement: Placement) -> set[str]:
    return await retired(placement.database)


# Begin of a move


async def test_one_claim_begins_a_move_and_publishes_both_hosts(placement: Placement) -> None:
    seen = placement.memory.index.seen
    assert await claim(placement, moves()) == [Claimed(choice=0, generation=2, number=seen + 1)]
    assert await held(placement) == {
        BUILD: (on_hosts(2, **FIVE), "INSTANCE", "mine"),
        KEEP: (on_hosts(1, **FIVE), MIGRATION, "mine"),
    }
    assert await over(placement) == {uid(MOVE)}
    rows = placement.memory.index.rows
    assert [rows[host].free["VCPU"] for host in (H1, H2, H3)] == [3, 3, 8]
    assert await reported(placement, seen) == {H1, H2}


async def test_a_repeated_claim_of_a_move_reports_that_it_has_begun(placement: Placement, url: str) -> None:
    await claim(placement, moves())
    assert await claim(placement, moves(), moves(3)) == [BEGAN, BEGAN]
    await claim(placement, is_returning())
    async with a_placement(url) as other:
        assert await claim(other, moves()) == [BEGAN]
        assert await release(other, MOVE, None, "no host") == BEGAN
    await release(placement, BUILD, 3, "deleted")
    assert await claim(placement, moves()) == [BEGAN]
    assert await held(placement) == {}


async def test_the_id_of_a_started_move_belongs_to_the_project_of_its_instance(placement: Placement) -> None:
    await claim(placement, moves())
    found = await placement.lookups.allocations(FindAllocations(consumers=(uid(MOVE),), others=True))
    assert (found.objects, found.retired) == ({uid(MOVE): "mine"}, {uid(MOVE): ""})


async def test_a_move_begun_and_cancelled_concurrently_is_either_begun_or_cancelled(
    placement: Placement, url: str
) -> None:
    won: set[str] = set()
    async with a_placement(url, Clock(chance=random.Random(1))) as other:
        generation = 1
        for position in range(40):
            move = 1000 + position
            begin = claim(placement, moves(1, 2, 3, move=move, generation=generation))
            fence = release(other, move, None, "no host")
            if position % 2:
                [began], ended = await asyncio.gather(begin, fence)
            else:
                ended, [began] = await asyncio.gather(fence, begin)
            assert not isinstance(began, Contended) and not isinstance(ended, Contended)
            there = await held(placement)
            if isinstance(began, Claimed):
                won.add("claim")
                assert ended == BEGAN
                assert there.keys() == {BUILD, KEEP} and there[KEEP][1] == MIGRATION
                generation = began.generation
                await release(placement, KEEP, "any")
            else:
                won.add("fence")
                assert isinstance(ended, Released)
                assert began == Retired(why="no host")
                assert there.keys() == {BUILD}
    await placement.memory.fresh()
    assert won  # on a fast machine, the same call may always win


# Reverts


async def test_on_the_way_back_the_instance_holds_its_former_allocations(placement: Placement) -> None:
    await claim(placement, moves())
    seen = placement.memory.index.seen
    assert await claim(placement, is_returning(keep=LEFT)) == [
        Claimed(choice=0, generation=3, number=seen + 1)
    ]
    assert await held(placement) == {
        BUILD: (on_hosts(1, **FIVE), "INSTANCE", "mine"),
        LEFT: (on_hosts(2, **FIVE), CLEANUP, "mine"),
    }
    assert await reported(placement, seen) == {H1, H2}
    again = Held(generation=3, allocations=on_hosts(1, **FIVE), roots=(H1,))
    assert await claim(placement, is_returning(keep=LEFT)) == [again]
    assert isinstance(await release(placement, LEFT, "any"), Released)
    assert placement.memory.index.rows[H2].free == {"VCPU": 8}


# Concurrent moves, shelving and pools


async def test_concurrent_moves_and_reverts_leave_no_orphaned_allocations(
    placement: Placement, url: str, every_commit: EveryCommit
) -> None:
    """Two processes move the same builds back and forth; at every commit, usage equals the allocations."""
    builds, size = range(10, 14), {"VCPU": 1}
    for build in builds:
        await claim(placement, an_order(a_claim(build, on_hosts(1 + build % 2, VCPU=1))))
    started: list[int] = []

    async def lives(by: Placement, seed: int) -> None:
        chance = random.Random(seed)
        kept = {build: [build * 1000] for build in builds}
        for position in range(25):
            orders: list[ClaimRequested] = []
            for build in chance.sample(builds, 3):
                [found] = (await by.lookups.allocations(FindAllocations(consumers=(uid(build),)))).consumers
                new = build * 1000 + position * 2 + seed
                one = a_claim(
                    build,
                    on_hosts(chance.randrange(1, 4), **size),
                    generation=found.generation,
                    keep=chance.choice([new, None]),
                )
                if chance.random() < 0.5:
                    one = replace(one, begins=uid(new + 100))
                elif chance.random() < 0.6:
                    one = replace(one, take_over=uid(chance.choice(kept[build])))
                kept[build].append(new)
                orders.append(an_order(one))
            results = await claim(by, *orders)
            started.extend(
                int(order.claims[0].begins is not None)
                for order, result in zip(orders, results, strict=True)
                if isinstance(result, Claimed)
            )
            assert not any(isinstance(one, Contended) for one in results)
            for build in chance.sample(builds, 2):
                await release(by, chance.choice(kept[build]), "any")

    every_commit.kept = {uid(build): size for build in builds}
    async with a_placement(url, Clock(chance=random.Random(1))) as other:
        await asyncio.gather(lives(placement, 1), lives(other, 2))
        await placement.memory.fresh()
        await other.memory.fresh()
        assert seen_by(placement) == seen_by(other)
    assert every_commit.broken == []
    assert every_commit.commits > 30 and len(started) > 20
    assert sum(started) == len(await over(placement))


async def test_a_shelved_instance_holds_nothing_until_a_move_revives_it(placement: Placement) -> None:
    assert isinstance(await release(placement, BUILD, 1, retire=SHELVED, revivable=True), Released)
    boot = an_order(a_claim(BUILD, on_hosts(2, **FIVE), project="mine"))
    assert await claim(placement, boot) == [Retired(why=SHELVED, revivable=True)]
    [woken] = await claim(placement, moves(generation=None, keep=None))
    assert isinstance(woken, Claimed)
    assert await over(placement) == {uid(MOVE)}
    assert (await held(placement))[BUILD] == (on_hosts(2, **FIVE), "INSTANCE", "mine")
    assert isinstance(
        await release(placement, BUILD, woken.generation, retire=SHELVED, revivable=True), Released
    )
    assert isinstance(await release(placement, BUILD, None, retire="deleted"), Released)
    assert await claim(placement, moves(move=MOVE + 1, generation=None, keep=None)) == [
        Retired(why="deleted")
    ]
    assert await placement_breaches(placement.database) == []


@pytest.mark.parametrize(("disk", "fits"), [(60, True), (90, True), (101, False)])
async def test_a_destination_on_the_same_pool_needs_only_what_the_instance_does_not_hold(
    placement: Placement, disk: int, fits: bool
) -> None:
    """The pool has 100 GB, and the instance holds 60 of them."""
    rack = (uid(1, "d"),)
    for number in (1, 2):
        await placement.reports.report_many([a_report(number, sequence=2, aggregates=rack)])
    pool = a_report(9, inventories={"DISK_GB": Inventory(total=100)}, traits=(SHARES,), aggregates=rack)
    await placement.reports.report_many([pool])
    pool_id = uid(9, "a")
    [done] = await claim(
        placement,
        an_order(
            a_claim(BUILD, {**on_hosts(1, **FIVE), pool_id: {"DISK_GB": 60}}, generation=1, project="mine")
        ),
    )
    assert isinstance(done, Claimed)
    flavor = Flavor(name="f", vcpus=5, disk_gb=60)
    chosen = Selection(
        root=H1, host="host-1", agent="agent-1",
        choice=Choice({H1: FIVE, pool_id: {"DISK_GB": 60}}),
    )  # fmt: skip
    stands = a_build_that_stands(build=uid(BUILD), generation=2, cell="c1")
    spec = replace(stands.placed.spec, flavor=flavor, project="mine")
    stands = replace(stands, chosen=chosen, spec=spec, placed=replace(stands.placed, spec=spec))
    cells = Cells()
    cells.know(stands)
    larger = replace(flavor, name="larger", disk_gb=disk)
    asked = a_move(kind="resize", build=uid(BUILD), flavor=larger, cell="c1")
    scheduler = scheduler_of(placement)
    [[answer]] = await moves_of(scheduler, cells.find).place_many([asked])  # type: ignore[misc]
    if fits:
        assert isinstance(answer, MovePlaced) and answer.chosen is not None, answer
        assert answer.chosen.choice.allocations == {H2: FIVE, pool_id: {"DISK_GB": disk}}
        assert 100 - placement.memory.index.rows[pool_id].free["DISK_GB"] == max(60, disk)
    else:
        assert isinstance(answer, MoveRefused)
    assert await placement_breaches(placement.database) == []

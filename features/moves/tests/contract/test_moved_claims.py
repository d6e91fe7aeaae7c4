"""Moves on both databases: one claim begins a move once, and a holder keeps the source for a revert."""

import asyncio
import random
from typing import Any

import pytest
from msgspec.structs import replace

from berth.kit.testing import retired
from bus.claims import MIGRATION, STARTED, Claimed, ClaimRequested, Retired
from bus.clock import Clock
from bus.resources import FindAllocations
from bus.vocabulary import Allocations, Contended
from placement_worker.testing import Placement, changes_since
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
        sent = (await changes_since(tx, after, 10)).changes
    return {change.provider for one in sent for change in one.changes}


async def over(placement: Placement) -> set[str]:
    return await retired(placement.database)


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

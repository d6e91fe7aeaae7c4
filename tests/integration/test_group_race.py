"""Concurrent claims for one server group by several processes on PostgreSQL never violate its policy."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from msgspec.structs import replace

from bus.claims import Choice, Claimed, ClaimRequested, ClaimResult, GroupPolicyViolated, Held, Refused
from bus.clock import Clock
from bus.groups import FindGroups, GroupEditRequested, GroupPolicy, MakeGroup, ServerGroup
from bus.messages import BuildPlaced, Selection
from bus.refused_edits import Contended
from bus.requests import BuildSpec, Flavor
from bus.sql.database import Database
from bus.sql.failures import explained
from bus.sql.migrations import migrate
from bus.vocabulary import Allocations
from cell_conductor import census
from cell_conductor.builds import Builds
from cell_conductor.core.limits import AttemptLimits
from placement_worker import Placement, breaches
from tests.support.conductor_builders import a_build_order, an_agent_report
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_release, a_report, an_order, on_hosts

pytestmark = [pytest.mark.services, pytest.mark.slow]

GROUP = uid(1, "9")
HOSTS, AT_ONCE = 12, 20


@pytest.fixture(autouse=True)
def no_deadlocks(monkeypatch: pytest.MonkeyPatch) -> "list[str]":
    found: list[str] = []

    def noticed(error: Exception, database: str) -> Exception:
        if getattr(error, "sqlstate", None) == "40P01":
            found.append(str(error))
        return explained(error, database)

    monkeypatch.setattr("bus.sql.transaction.explained", noticed)
    return found


@asynccontextmanager
async def processes(
    url: str, policy: GroupPolicy, most: int = 1, count: int = 4
) -> AsyncIterator[list[Placement]]:
    async with AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(a_placement(url, Clock(chance=random.Random(seed))))
            for seed in range(count)
        ]
        await made[0].reports.report_many([a_report(host) for host in range(HOSTS)])
        group = MakeGroup(group=GROUP, name="web", policy=policy, max_per_host=most, project="p1")
        await made[0].server_groups.edit(GroupEditRequested(edit=group))
        yield made


async def watched(placement: Placement, work: Awaitable[None]) -> None:
    async def look() -> None:
        while True:
            assert await breaches(placement.database) == []
            await asyncio.sleep(0)

    looking = asyncio.ensure_future(look())
    working = asyncio.ensure_future(work)
    await asyncio.wait([looking, working], return_when=asyncio.FIRST_COMPLETED)
    looking.cancel()
    working.cancel()
    for outcome in await asyncio.gather(looking, working, return_exceptions=True):
        if outcome is not None and not isinstance(outcome, asyncio.CancelledError):
            raise outcome
    assert working.done() and not working.cancelled()


async def group_of(placement: Placement) -> ServerGroup:
    [group] = (await placement.server_groups.find(FindGroups(ids=(GROUP,)))).groups
    return group


async def claimed(placement: Placement, order: ClaimRequested) -> ClaimResult:
    [answer] = await placement.claims.claim_many([order])
    return answer.results[0]


def anywhere(chance: random.Random) -> list[Allocations]:
    return [on_hosts(host) for host in chance.sample(range(HOSTS), HOSTS)]


@pytest.mark.parametrize(("most", "placed"), [(1, 12), (2, 20)])
async def test_of_twenty_at_once_as_many_are_placed_as_there_is_room_apart(
    database_url: str, no_deadlocks: list[str], most: int, placed: int
) -> None:
    async with processes(database_url, "anti-affinity", most) as racers:

        async def all_at_once() -> None:
            orders = [
                an_order(a_claim(number, *anywhere(random.Random(number)), group=GROUP))
                for number in range(AT_ONCE)
            ]
            asked = [claimed(racers[number % len(racers)], order) for number, order in enumerate(orders)]
            results = await asyncio.gather(*asked)
            assert sum(isinstance(result, Claimed) for result in results) == placed
            for result in results:
                if not isinstance(result, Claimed):
                    assert isinstance(result, Refused), result
                    assert {type(refusal) for refusal in result.refusals} == {GroupPolicyViolated}

        await watched(racers[0], all_at_once())
        where = [root for roots in (await group_of(racers[0])).members.values() for root in roots]
        assert len(where) == placed and max(where.count(root) for root in where) <= most
    assert no_deadlocks == []


async def test_those_who_are_to_be_together_all_follow_the_first(
    database_url: str, no_deadlocks: list[str]
) -> None:
    async with processes(database_url, "affinity") as racers:

        async def all_at_once() -> None:
            results = await asyncio.gather(
                *(
                    claimed(
                        racers[number % len(racers)],
                        an_order(a_claim(number, on_hosts(number % HOSTS), group=GROUP)),
                    )
                    for number in range(AT_ONCE)
                )
            )
            assert any(isinstance(result, Claimed) for result in results)

        await watched(racers[0], all_at_once())
        assert len(set((await group_of(racers[0])).members.values())) == 1
    assert no_deadlocks == []


@pytest.mark.parametrize("policy", ["anti-affinity", "affinity"])
async def test_claims_swaps_and_releases_of_a_group_at_once(
    database_url: str, no_deadlocks: list[str], policy: GroupPolicy
) -> None:
    async def live(racers: Sequence[Placement], seed: int) -> None:
        chance = random.Random(seed)
        mine = range(seed * 10, seed * 10 + 5)
        known: dict[int, int] = {}
        kept: list[int] = []
        for step in range(25):
            placement = chance.choice(racers)
            picked = chance.sample(mine, 2)
            claims = []
            for one in picked:
                generation = known.get(one)
                keep = (
                    1000 * (seed + 1) + step * 10 + one % 10 if generation and chance.random() < 0.5 else None
                )
                claims.append(
                    a_claim(
                        one,
                        *chance.sample(anywhere(chance), 3),
                        generation=generation,
                        group=GROUP if generation is None and one % 5 else None,
                        keep=keep,
                    )
                )
            orders = [an_order(*claims)] if chance.random() < 0.5 else [an_order(claim) for claim in claims]
            answers = await placement.claims.claim_many(orders)
            results = [result for answer in answers for result in answer.results]
            for one, claim, result in zip(picked, claims, results, strict=True):
                assert not isinstance(result, Contended | Held), result
                if isinstance(result, Claimed):
                    known[one] = result.generation
                    if claim.keep is not None:
                        kept.append(int(claim.keep[-12:]))
            if known and chance.random() < 0.5:
                leaving = chance.choice(list(known))
                await placement.claims.release_many([a_release(leaving, known.pop(leaving))])
            while kept and chance.random() < 0.6:
                await placement.claims.release_many([a_release(kept.pop(), None, fenced=False)])

    async with processes(database_url, policy) as racers:

        async def all_of_them() -> None:
            await asyncio.gather(*(live(racers, seed) for seed in range(6)))

        await watched(racers[0], all_of_them())
    assert no_deadlocks == []


async def test_a_conductor_falls_over_while_others_are_placed(
    database_url: str, no_deadlocks: list[str]
) -> None:
    async with processes(database_url, "anti-affinity", count=3) as racers:
        cell = Database(database_url, namespace="cell")
        await migrate(cell, "cell_conductor")
        builds = Builds(
            cell,
            racers[2].claims.claim_many,
            racers[2].claims.release_many,
            limits=AttemptLimits(max_attempts=3, build_timeout=100.0),
        )
        chance = random.Random(1)
        placed = []
        for number in range(10):
            hosts = chance.sample(range(HOSTS), HOSTS)
            order = an_order(a_claim(number, *map(on_hosts, hosts), group=GROUP))
            result = await claimed(racers[0], order)
            assert isinstance(result, Claimed)
            first = hosts.pop(result.choice)
            placed.append(_placed(number, first, hosts if number == 9 else hosts[:4]))

        async def strangers() -> None:
            for round_ in range(6):
                numbers = [100 * (round_ + 1) + one for one in range(AT_ONCE)]
                results = await asyncio.gather(
                    *(
                        claimed(racers[number % 2], an_order(a_claim(number, *anywhere(chance), group=GROUP)))
                        for number in numbers
                    )
                )
                taken = [one for one, got in zip(numbers, results, strict=True) if isinstance(got, Claimed)]
                await asyncio.gather(
                    *(racers[one % 2].claims.release_many([a_release(one, 1)]) for one in taken)
                )

        async def fails(one: BuildPlaced) -> None:
            report = an_agent_report(a_build_order(one), "failed", cause="no disk")
            await builds.report_many([replace(report, leftover=True)])

        async def failures() -> None:
            await builds.start_many(placed)
            for one in placed[:-1]:
                await fails(one)
            for build, standing in (await census(cell)).items():
                assert standing.status in ("building", "error"), build

        async def both() -> None:
            await asyncio.gather(strangers(), failures())

        try:
            await watched(racers[0], both())
            await fails(placed[-1])
            standing = await census(cell)
            there = await group_of(racers[0])
            building = {build: one for build, one in standing.items() if one.status == "building"}
            assert {build: (standing.root,) for build, standing in building.items()} == there.members
            assert building, "no build found another host"
            assert len(there.left) >= len(building), "what was left behind is kept for the group"
        finally:
            await cell.close()
    assert no_deadlocks == []


def _placed(number: int, first: int, alternates: Sequence[int]) -> BuildPlaced:
    chosen, *spares = (
        Selection(root=uid(host, "a"), host=f"host-{host}", agent="agent", choice=Choice(on_hosts(host)))
        for host in (first, *alternates)
    )
    return BuildPlaced(
        build=uid(number),
        request=uid(number, "b"),
        cell="c1",
        chosen=chosen,
        generation=1,
        alternates=tuple(spares),
        spec=BuildSpec(flavor=Flavor(name="small", vcpus=1), project="p1", user="u1"),
    )

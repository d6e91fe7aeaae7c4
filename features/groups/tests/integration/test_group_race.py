"""Concurrent claims for one server group by several processes on PostgreSQL never violate its policy."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager

import pytest

from berth.kit import Settings
from berth.kit.testing import placement_breaches
from bus.claims import Claimed, ClaimRequested, ClaimResult, Held, Refused, RuleRefused
from bus.parts import ClaimParts
from bus.sql.failures import explained
from bus.vocabulary import Allocations, Contended, LimitReached
from features.groups.constraints import DomainConstraints
from features.groups.messages import (
    FindGroups,
    GroupClaim,
    GroupEditAnswered,
    GroupEdited,
    GroupEditRequested,
    GroupPolicy,
    MakeGroup,
    ServerGroup,
)
from features.groups.store import ServerGroups
from features.groups.tests.support.group_parts import joining
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import (
    a_claim,
    a_release,
    a_report,
    an_order,
    on_hosts,
    racing_placements,
)

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

    monkeypatch.setattr("bus.sql.statement.explained", noticed)
    return found


@asynccontextmanager
async def processes(url: str, policy: GroupPolicy, most: int = 1) -> AsyncIterator[list[Placement]]:
    async with racing_placements(url) as made:
        await made[0].reports.report_many([a_report(host) for host in range(HOSTS)])
        group = MakeGroup(group=GROUP, name="web", policy=policy, max_per_host=most, project="p1")
        await made[0].of(ServerGroups).edit(GroupEditRequested(edit=group))
        yield made


async def watched(placement: Placement, work: Awaitable[None]) -> None:
    async def look() -> None:
        while True:
            assert await placement_breaches(placement.database) == []
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
    [group] = (await placement.of(ServerGroups).find(FindGroups(ids=(GROUP,)))).groups
    return group


async def claimed(placement: Placement, order: ClaimRequested) -> ClaimResult:
    [answer] = await placement.claims.claim_many([order])
    return answer.results[0]


def anywhere(chance: random.Random) -> list[Allocations]:
    return [on_hosts(host) for host in chance.sample(range(HOSTS), HOSTS)]


@pytest.mark.parametrize(("most", "placed"), [(1, 12), (2, 20)])
async def test_concurrent_anti_affinity_claims_fill_the_hosts_exactly(
    database_url: str, no_deadlocks: list[str], most: int, placed: int
) -> None:
    async with processes(database_url, "anti-affinity", most) as racers:

        async def all_at_once() -> None:
            orders = [
                an_order(a_claim(number, *anywhere(random.Random(number)), parts=joining(GROUP)))
                for number in range(AT_ONCE)
            ]
            asked = [claimed(racers[number % len(racers)], order) for number, order in enumerate(orders)]
            results = await asyncio.gather(*asked)
            assert sum(isinstance(result, Claimed) for result in results) == placed
            for result in results:
                if not isinstance(result, Claimed):
                    assert isinstance(result, Refused), result
                    assert {type(refusal) for refusal in result.refusals} == {RuleRefused}

        await watched(racers[0], all_at_once())
        where = [root for roots in (await group_of(racers[0])).members.values() for root in roots]
        assert len(where) == placed and max(where.count(root) for root in where) <= most
    assert no_deadlocks == []


@pytest.mark.parametrize("policy", ["anti-affinity", "affinity"])
async def test_concurrent_claims_swaps_and_releases_of_a_group(
    database_url: str, no_deadlocks: list[str], policy: GroupPolicy
) -> None:
    async def live(racers: Sequence[Placement], seed: int) -> None:
        chance = random.Random(seed)
        mine = range(seed * 10, seed * 10 + 5)
        known: dict[int, int] = {}
        kept: list[int] = []
        for step in range(12):
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
                        parts=ClaimParts(GroupClaim(group=GROUP) if generation is None and one % 5 else None),
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
                await placement.claims.release_many([a_release(kept.pop(), "any")])

    async with processes(database_url, policy) as racers:

        async def all_of_them() -> None:
            await asyncio.gather(*(live(racers, seed) for seed in range(6)))

        await watched(racers[0], all_of_them())
    assert no_deadlocks == []


async def test_concurrent_claims_of_a_request_make_its_group_once(
    database_url: str, no_deadlocks: list[str]
) -> None:
    """Several schedulers may place one request at once, if the broker delivers it again."""
    topology = DomainConstraints(spread="host")
    async with processes(database_url, "affinity") as racers:
        for number in range(50):
            claim = a_claim(number, on_hosts(number % HOSTS), parts=joining(uid(number, "8"), topology))
            results = await asyncio.gather(*(claimed(placement, an_order(claim)) for placement in racers))
            assert Counter(map(type, results)) == {Claimed: 1, Held: len(racers) - 1}, results
            await racers[0].claims.release_many([a_release(number, 1)])
    assert no_deadlocks == []


async def test_simultaneous_requests_do_not_exceed_the_limits(url: str) -> None:
    settings = Settings().having(max_groups=12, max_groups_project=5)
    async with racing_placements(url, settings=settings) as racers:

        def made(number: int) -> Awaitable[GroupEditAnswered]:
            edit = MakeGroup(
                group=uid(number), name=f"g{number}", policy="affinity", project=f"p{number % 4}"
            )
            return racers[number % len(racers)].of(ServerGroups).edit(GroupEditRequested(edit=edit))

        results = [answer.result for answer in await asyncio.gather(*map(made, range(200)))]
        assert {type(result) for result in results} == {GroupEdited, LimitReached}
        found = (await racers[0].of(ServerGroups).find(FindGroups())).groups
        assert len(found) == sum(isinstance(result, GroupEdited) for result in results) == 12
        assert max(Counter(each.project for each in found).values()) <= 5

"""Many writers on one PostgreSQL: never over capacity, a consumer holds once, the retired hold nothing."""

import asyncio
import random
from typing import Any

import pytest

from berth.operations.audit import placement_breaches
from berth.operations.stored_claims import allocations, retired
from bus.claims import Claimed, Held, Refused, Released, Retired
from bus.messages import InventoryReported
from bus.reports import EXCLUDES_SIBLINGS, Inventory, ProviderReport
from bus.vocabulary import Contended
from placement_worker import Placement
from placement_worker.store import stored_trees
from tests.support.ids import uid
from tests.support.placement_builders import (
    a_claim,
    a_placement,
    a_release,
    a_report,
    an_order,
    on_hosts,
    racing_placements,
)
from tests.support.placement_calls import find_providers, report, take

pytestmark = pytest.mark.services

WORKERS = 4


@pytest.mark.parametrize("alike", [True, False], ids=["for the same consumers", "for consumers of their own"])
async def test_concurrent_claims_of_the_last_places_take_exactly_those(
    database_url: str, alike: bool
) -> None:
    async with racing_placements(database_url, WORKERS) as racers:
        room = {"VCPU": Inventory(total=4)}
        await racers[0].reports.report_many([a_report(host, inventories=room) for host in range(5)])

        async def race(placement: Placement, seed: int) -> list[object]:
            """Every worker claims for forty consumers, in an order of its own, in batches."""
            chance = random.Random(seed)
            consumers = list(range(40)) if alike else list(range(40 * seed, 40 * seed + 40))
            chance.shuffle(consumers)
            results: list[object] = []
            for at in range(0, 40, 8):
                orders = []
                for consumer in consumers[at : at + 8]:
                    hosts = chance.sample(range(5), 5)
                    choices = [on_hosts(host, VCPU=1) for host in hosts]
                    orders.append(an_order(a_claim(consumer, *choices)))
                results += [answer.results[0] for answer in await placement.claims.claim_many(orders)]
            return results

        outcomes = await asyncio.gather(*(race(placement, seed) for seed, placement in enumerate(racers)))
        sent = [one for outcome in outcomes for one in outcome]
        held = await allocations(racers[0].database)
        assert sum(isinstance(one, Claimed) for one in sent) == len(held) == 20
        assert not any(isinstance(one, Contended) for one in sent)
        held_before = 20 * (WORKERS - 1) if alike else 0
        assert sum(isinstance(one, Held) for one in sent) == held_before
        assert sum(isinstance(one, Refused) for one in sent) == len(sent) - 20 - held_before
        assert await placement_breaches(racers[0].database) == []


async def test_a_claim_and_the_retirement_of_its_consumer_never_both_win(database_url: str) -> None:
    async with racing_placements(database_url, WORKERS) as racers:
        await racers[0].reports.report_many([a_report(1, inventories={"VCPU": Inventory(total=1000)})])
        both = 90
        taken: list[object] = []
        ended: list[object] = []
        for at in range(0, both, 3):
            orders = [an_order(a_claim(one, on_hosts(1))) for one in range(at, at + 3)]
            endings = [a_release(one, None, "ended") for one in range(at + 2, at - 1, -1)]
            if at % 2:
                claims, ends = await asyncio.gather(
                    racers[0].claims.claim_many(orders), racers[1].claims.release_many(endings)
                )
            else:
                ends, claims = await asyncio.gather(
                    racers[1].claims.release_many(endings), racers[0].claims.claim_many(orders)
                )
            taken += [answer.results[0] for answer in claims]
            ended += [end.result for end in reversed(ends)]
        assert {type(one) for one in taken} == {Claimed, Retired}, "they never met"
        held, over = await allocations(racers[0].database), await retired(racers[0].database)
        for consumer, claim, release in zip(range(both), taken, ended, strict=True):
            if isinstance(claim, Claimed):
                assert isinstance(release, Held)
                assert uid(consumer) in held and uid(consumer) not in over
            else:
                assert isinstance(claim, Retired)
                assert isinstance(release, Released)
                assert uid(consumer) in over and uid(consumer) not in held
        assert await placement_breaches(racers[0].database) == []


async def test_a_retried_report_keeps_concurrent_claims(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_placement(database_url) as placement:
        await placement.reports.report_many([a_report(1), a_report(2)])
        lock = stored_trees.lock

        async def lock_late(*given: Any) -> Any:
            """Claim on both hosts after the trees were read."""
            await placement.claims.claim_many([an_order(a_claim(1, on_hosts(1, 2, VCPU=3)))])
            return await lock(*given)

        monkeypatch.setattr(stored_trees, "lock", lock_late)
        changed = a_report(1, sequence=2, inventories={"VCPU": Inventory(total=16)})
        await placement.reports.report_many([changed, a_report(2, sequence=2)])
        free = {row.host: row.free for row in placement.memory.index.rows.values()}
        assert free == {"host-1": {"VCPU": 13}, "host-2": {"VCPU": 5}}


GPUS = 4
TYPES = ("a", "b")


def type_of(gpu: int, type_: str) -> str:
    return uid(100 * gpu + TYPES.index(type_) + 1, "d")


async def test_concurrent_claims_never_put_two_types_on_one_gpu(database_url: str) -> None:
    async with racing_placements(database_url, 3) as racers:
        cards = [
            ProviderReport(id=uid(gpu, "e"), name=f"gpu{gpu}", parent=uid(1, "a"), inventories={})
            for gpu in range(1, GPUS + 1)
        ]
        types = [
            ProviderReport(
                id=type_of(gpu, type_),
                name=f"gpu{gpu}_{type_}",
                parent=uid(gpu, "e"),
                inventories={"VGPU": Inventory(total=4)},
                traits=(EXCLUDES_SIBLINGS,),
            )
            for gpu in range(1, GPUS + 1)
            for type_ in TYPES
        ]
        await racers[0].reports.report_many([a_report(1, *cards, *types)])
        chance = random.Random(1)
        for turn in range(6):
            consumers = list(range(100 * turn, 100 * turn + 16))
            results: dict[int, object] = {}

            async def claim(consumer: int, results: dict[int, object] = results) -> None:
                type_ = TYPES[consumer % 2]
                gpus = chance.sample(range(1, GPUS + 1), GPUS)
                choices = [{type_of(gpu, type_): {"VGPU": 1}} for gpu in gpus]
                order = an_order(a_claim(consumer, *choices))
                (answer,) = await chance.choice(racers).claims.claim_many([order])
                results[consumer] = answer.results[0]

            await asyncio.gather(*map(claim, consumers))
            held = await allocations(racers[0].database)
            in_use = {provider for _, allocations, _ in held.values() for provider in allocations}
            for gpu in range(1, GPUS + 1):
                assert len(in_use & {type_of(gpu, type_) for type_ in TYPES}) <= 1
            assert all(isinstance(one, Claimed | Refused) for one in results.values()), results
            claimed = [one for one, result in results.items() if isinstance(result, Claimed)]
            assert len(claimed) == len(held) >= 8
            assert await placement_breaches(racers[0].database) == []
            await racers[1].claims.release_many([a_release(one, 1) for one in claimed])
        assert not await allocations(racers[0].database)


def a_node(class_: str, sequence: int) -> InventoryReported:
    one = {class_: Inventory(total=1, max_unit=1)}
    return a_report(1, sequence=sequence, name=uid(1, "a"), inventories=one)


async def test_claims_that_race_with_a_change_of_class_leave_a_node_with_one_holder(
    database_url: str,
) -> None:
    async with racing_placements(database_url, 3) as (placement, reporting, other):
        for sequence in range(1, 61, 2):
            await report(placement, a_node("CUSTOM_ONE", sequence))
            await asyncio.gather(
                take(placement, a_claim(1, on_hosts(1, CUSTOM_ONE=1))),
                report(reporting, a_node("CUSTOM_TWO", sequence + 1)),
                take(other, a_claim(2, on_hosts(1, CUSTOM_TWO=1))),
            )
            assert await placement_breaches(placement.database) == []
            await placement.claims.release_many([a_release(1, 1), a_release(2, 1)])
            [node] = await find_providers(placement, ids=(uid(1, "a"),))
            assert node.inventories == {"CUSTOM_TWO": Inventory(total=1, max_unit=1)}

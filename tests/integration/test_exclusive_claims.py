"""Concurrent claims of vGPU types: one GPU never has two types in use, and every claim that fits succeeds."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from bus.claims import Claimed, Refused
from bus.clock import Clock
from bus.reports import EXCLUDES_SIBLINGS, Inventory, ProviderReport
from placement_worker import breaches, holdings
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_release, a_report, an_order

pytestmark = pytest.mark.services

GPUS = 4
TYPES = ("a", "b")


def type_of(gpu: int, type_: str) -> str:
    return uid(100 * gpu + TYPES.index(type_) + 1, "d")


async def test_concurrent_claims_never_put_two_types_on_one_gpu(database_url: str) -> None:
    async with AsyncExitStack() as stack:
        racers = [
            await stack.enter_async_context(a_placement(database_url, Clock(chance=random.Random(seed))))
            for seed in range(3)
        ]
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
            held = await holdings(racers[0].database)
            in_use = {provider for _, allocations, _ in held.values() for provider in allocations}
            for gpu in range(1, GPUS + 1):
                assert len(in_use & {type_of(gpu, type_) for type_ in TYPES}) <= 1
            assert all(isinstance(one, Claimed | Refused) for one in results.values()), results
            claimed = [one for one, result in results.items() if isinstance(result, Claimed)]
            assert len(claimed) == len(held) >= 8
            assert await breaches(racers[0].database) == []
            await racers[1].claims.release_many([a_release(one, 1) for one in claimed])
        assert not await holdings(racers[0].database)

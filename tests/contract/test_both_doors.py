"""Concurrent clients over HTTP in one process and on the bus in another leave consistent data."""

import asyncio
import random
from collections import Counter

from bus.claims import Claimed, Held
from bus.resources import FindAllocations, FindProviders
from placement_worker import Placement, breaches
from placement_worker.store import changes
from tests.support.http_placement import HttpPlacement, a_door
from tests.support.ids import uid
from tests.support.placement_builders import (
    a_claim,
    a_placement,
    a_release,
    an_order,
    keeps_its_index,
    seen_by,
)

HOSTS, TOTAL, CONSUMERS, STEPS = 4, 6, 8, 60
OWNER = {"project_id": "p1", "user_id": "u1", "consumer_type": "INSTANCE"}


def host(chance: random.Random) -> str:
    return uid(chance.randrange(HOSTS), "a")


async def at_the_door(door: HttpPlacement, seed: int) -> Counter[str]:
    """PUT, POST and DELETE of allocations, and inventories put anew, by what GET has just shown."""
    chance, done = random.Random(seed), Counter[str]()
    for _ in range(STEPS):
        consumer = uid(chance.randrange(CONSUMERS))
        held = (await door("GET", f"/allocations/{consumer}")).json()
        wanted = {host(chance): {"resources": {"VCPU": chance.randrange(1, 4)}} for _ in range(2)}
        body = {"allocations": wanted, "consumer_generation": held.get("consumer_generation"), **OWNER}
        match chance.randrange(6):
            case 0:
                answer = await door("DELETE", f"/allocations/{consumer}")
            case 1:
                other = uid(chance.randrange(CONSUMERS), "b")
                heir = (await door("GET", f"/allocations/{other}")).json().get("consumer_generation")
                bodies = {
                    consumer: {**body, "allocations": {}},
                    other: {
                        **body,
                        "consumer_generation": heir,
                        "allocations": held["allocations"] or wanted,
                    },
                }
                answer = await door("POST", "/allocations", bodies)
            case 2:  # as before 1.28: whatever it holds
                old = {name: body[name] for name in ("allocations", "project_id", "user_id")}
                answer = await door("PUT", f"/allocations/{consumer}", old, minor=27)
            case 3:
                path = f"/resource_providers/{host(chance)}/inventories"
                inventories = (await door("GET", path)).json()
                inventories["inventories"]["VCPU"]["max_unit"] = chance.randrange(2, 9)
                answer = await door("PUT", path, inventories)
            case _:
                answer = await door("PUT", f"/allocations/{consumer}", body)
        assert answer.status_code < 500, answer.text
        done[str(answer.status_code)] += 1
    return done


async def on_the_bus(placement: Placement, seed: int) -> Counter[str]:
    chance, done = random.Random(seed), Counter[str]()
    known: dict[int, int | None] = {}
    for _ in range(STEPS):
        one = chance.randrange(CONSUMERS)
        if chance.random() < 0.7:
            choices = [{host(chance): {"VCPU": chance.randrange(1, 4)}} for _ in range(2)]
            order = an_order(a_claim(one, *choices, generation=known.get(one)))
            result = (await placement.claims.claim_many([order]))[0].results[0]
        else:
            released = await placement.claims.release_many([a_release(one, known.get(one))])
            result = released[0].result  # type: ignore[assignment]
        known[one] = (result.generation or None) if isinstance(result, Claimed | Held) else None
        done[type(result).__name__] += 1
    return done


async def test_whatever_comes_at_both_doors_nothing_is_given_twice(url: str) -> None:
    async with a_door(url) as door, a_placement(url) as other:
        for number in range(HOSTS):
            await door.provider(uid(number, "a"), VCPU=TOTAL)
        done = await asyncio.gather(
            *(at_the_door(door, seed) for seed in (1, 2, 3)), *(on_the_bus(other, seed) for seed in (4, 5))
        )
        happened = sum(done, Counter[str]())
        assert {"204", "409", "200", "Claimed", "Held"} <= happened.keys(), (
            happened
        )  # and it was no idle talk

        assert await breaches(other.database) == []
        found = (await other.lookups.providers(FindProviders())).providers
        answer = await other.lookups.allocations(
            FindAllocations(providers=tuple(provider.id for provider in found))
        )
        for provider in found:
            held = sum(each.allocations.get(provider.id, {}).get("VCPU", 0) for each in answer.consumers)
            assert held == provider.used["VCPU"] <= TOTAL

        for placement in (door.placement, other):
            await placement.memory.fresh()
            await keeps_its_index(placement)
        assert seen_by(door.placement) == seen_by(other)
        await generations_only_grow(other)


async def generations_only_grow(placement: Placement) -> None:
    async with placement.database.read() as tx:
        log = await changes.after(tx, 0, 100_000)
    assert [change.number for change in log] == list(range(1, len(log) + 1))
    last: dict[str, int] = {}
    for one in (one for change in log for one in change.changes):
        assert one.generation >= last.get(one.provider, 0)
        last[one.provider] = one.generation

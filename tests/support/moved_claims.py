"""Claims of moves on data in memory: the instance X on host A, and the holder consumer of its source."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from bus.claims import STARTED, Claimed, ConsumerClaim, Retired
from placement_worker.core.capacity import ClaimWorld, Holder
from tests.support.claim_worlds import A, B, C, X, Y, Z, room, stock, wants, world

ASLEEP = Retired(why="shelved", revivable=True)
NOBODY: Mapping[str, str] = {}
KEEP, LEFT = "keep", "left"
MOVE, OTHER = "move", "other"  # names of moves


def five(provider: str) -> dict[str, dict[str, int]]:
    return {provider: {"VCPU": 5}}


def a_world(held: Mapping[str, str] = NOBODY, *, capacity: int = 8) -> ClaimWorld:
    there = world(*(room(one, VCPU=stock(capacity)) for one in (A, B, C)))
    for name in (X, Y, Z, KEEP, LEFT, MOVE, OTHER):
        there.holders[name] = Holder(name, len(there.holders))
    for name, provider in {X: A, **held}.items():
        there.holders[name].generation, there.holders[name].held = 4, five(provider)
        there.provider(provider).stocks["VCPU"].used += 5
        there.provider(provider).stocks["VCPU"].was += 5
    return there


def held(there: ClaimWorld) -> Mapping[str, str]:
    for room_ in there.providers.values():
        assert room_ is not None
        sums = sum(holder.held.get(room_.uuid, {}).get("VCPU", 0) for holder in there.holders.values())
        assert room_.stocks["VCPU"].used == sums
    assert all(holder.held in ({}, *map(five, (A, B, C))) for holder in there.holders.values())
    return {holder.uuid: next(iter(holder.held)) for holder in there.holders.values() if holder.held}


def moves(to: str = B, *, move: str = MOVE, generation: int = 4, **more: Any) -> ConsumerClaim:
    return replace(wants(X, five(to), generation=generation), **({"keep": KEEP, "begins": move} | more))


def takes_over(other: str = KEEP, *, generation: int = 4, **more: Any) -> ConsumerClaim:
    return replace(wants(X, {}, generation=generation), take_over=other, **more)


DONE = Claimed(choice=0, generation=5, number=0)
BEGAN = Retired(why=STARTED)


def moved() -> ClaimWorld:
    """X is on B by its fourth claim, and KEEP has its place on A."""
    return a_world({X: B, KEEP: A})

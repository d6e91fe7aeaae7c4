"""Builders for unit tests of claims: providers and consumers as placement read them, and claims."""

from typing import Any

from bus.claims import Choice, ClaimRequested, ConsumerClaim, ExpectedGeneration, Full, Retired
from placement_worker.core.capacity import ClaimedProvider, ClaimWorld, Holder, Stock

A, B, C = "aaaa", "bbbb", "cccc"  # providers
X, Y, Z = "xxxx", "yyyy", "zzzz"  # consumers


def stock(
    capacity: int = 8, used: int = 0, min_unit: int = 1, max_unit: int = 100, step_size: int = 1
) -> Stock:
    return Stock(0, capacity, used, used, min_unit, max_unit, step_size)


def room(provider: str, shape: int = 3, **stocks: Stock) -> ClaimedProvider:
    return ClaimedProvider(1, provider, provider, shape, 10, 10, stocks)


def world(
    *capacities: ClaimedProvider,
    holders: dict[str, Holder] | None = None,
    retired: dict[str, Retired] | None = None,
) -> ClaimWorld:
    found: dict[str, ClaimedProvider | None] = {room.uuid: room for room in capacities}
    return ClaimWorld(found, holders or {one: Holder(one, 1) for one in (X, Y, Z)}, retired or {})


def wants(consumer: str, *choices: Any, generation: ExpectedGeneration = None) -> ConsumerClaim:
    made = tuple(choice if isinstance(choice, Choice) else Choice(choice) for choice in choices)
    return ConsumerClaim(consumer=consumer, generation=generation, choices=made)


def order(*claims: ConsumerClaim) -> ClaimRequested:
    return ClaimRequested(claims=claims)


def full(asked: int, free: int, limit: str = "", name: str = "VCPU", provider: str = A) -> Full:
    return Full(provider=provider, resource_class=name, asked=asked, free=free, limit=limit)

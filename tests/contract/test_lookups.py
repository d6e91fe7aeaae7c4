"""Queries for providers, allocations and usages: equal on both databases, never stale."""

from typing import Any

import pytest
from msgspec.structs import replace

from bus.claims import ConsumerClaim
from bus.reports import Inventory
from bus.requests import ResourceGroup
from bus.resources import Consumer, FindAllocations
from placement_worker import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_provider, an_order, on_hosts
from tests.support.placement_calls import find_providers, make_providers
from tests.support.virtual_time import TurnedClock

A, B, C, D = (uid(number, "a") for number in (1, 2, 3, 4))
X, Y = uid(1, "e"), uid(2, "e")


async def ids(placement: Placement, **query: Any) -> set[str]:
    return {provider.id for provider in await find_providers(placement, parts=(), **query)}


@pytest.fixture
async def rack(placement: Placement) -> Placement:
    gpus = {"CUSTOM_GPU": Inventory(total=4, min_unit=2, max_unit=4, step_size=2)}
    over = {"VCPU": Inventory(total=8, reserved=2, allocation_ratio=1.5), "DISK_GB": Inventory(total=10)}
    await make_providers(
        placement,
        a_provider(1, traits=("COMPUTE_NODE", "CUSTOM_GOLD"), aggregates=(X,)),
        a_provider(2, 1, inventories=gpus),
        a_provider(3, traits=("COMPUTE_NODE",), aggregates=(X, Y), inventories=over),
        replace(a_provider(4), inventories={}),
    )
    await placement.claims.claim_many([an_order(a_claim(1, on_hosts(1, VCPU=6)))])
    return placement


def like(**demands: Any) -> dict[str, Any]:
    return {"like": ResourceGroup(**demands)}


NOBODY: set[str] = set()
FOUND: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {A, B, C, D}),
    ({"ids": (A, D, uid(9, "a"), A)}, {A, D}),
    ({"name": "host-3"}, {C}),
    ({"name": "nobody"}, NOBODY),
    ({"name": "host-3", "ids": (A,)}, NOBODY),
    ({"in_tree": B}, {A, B}),
    ({"in_tree": uid(9, "a")}, NOBODY),
    ({"in_tree": B, "name": "host-1"}, {A}),
    ({"in_tree": B, "name": "host-3"}, NOBODY),
    ({"in_tree": B, "ids": (B, C)}, {B}),
    ({"in_tree": B, **like(in_tree=A)}, {A, B}),
    ({"in_tree": B, **like(in_tree=C)}, NOBODY),
    (like(in_tree=C), {C}),
    # fit: (total - reserved) x ratio, less what is used
    (like(resources={"VCPU": 2}), {A, C}),
    (like(resources={"VCPU": 10}), NOBODY),
    (like(resources={"VCPU": 1, "CUSTOM_GPU": 2}), NOBODY),  # each resource is compared separately
    (like(resources={"CUSTOM_GPU": 4}), {B}),
    (like(resources={"CUSTOM_NO": 1}), NOBODY),
    (like(required=("CUSTOM_NO",)), NOBODY),
    (like(forbidden=("COMPUTE_NODE",)), {B, D}),
    (like(forbidden=("CUSTOM_NO",)), {A, B, C, D}),
    (like(required_any=(("CUSTOM_GOLD", "COMPUTE_NODE"),), forbidden=("CUSTOM_GOLD",)), {C}),
    (like(member_of=((X,),)), {A, C}),
    (like(member_of=((uid(9, "e"),),)), NOBODY),
    (like(not_member_of=(uid(9, "e"),)), {A, B, C, D}),
    (like(resources={"VCPU": 1}, required=("COMPUTE_NODE",), member_of=((X,),), not_member_of=(Y,)), {A}),
    ({"ids": (A, B), **like(resources={"VCPU": 1})}, {A}),
]


async def test_providers_are_found_by_their_attributes(rack: Placement) -> None:
    assert [await ids(rack, **query) for query, _ in FOUND] == [expected for _, expected in FOUND]


def old(consumer: int, **resources: int) -> ConsumerClaim:
    """Return a claim of a client whose microversion has no consumer types."""
    claim = a_claim(consumer, on_hosts(3, **resources), project="p2")
    return ConsumerClaim(
        consumer=claim.consumer, generation=None, choices=claim.choices, project="p2", user="u2", type=None
    )


async def test_allocations_are_found_by_consumer_and_by_provider(
    rack: Placement, turned: TurnedClock
) -> None:
    turned.now += 5
    await rack.claims.claim_many([an_order(a_claim(2, on_hosts(1, 3, VCPU=1))), an_order(old(3, DISK_GB=4))])
    first = Consumer(
        id=uid(1),
        generation=1,
        project="p1",
        user="u1",
        type="INSTANCE",
        allocations=on_hosts(1, VCPU=6),
        updated=1_000_000.0,
    )
    [one] = (await rack.lookups.allocations(FindAllocations(consumers=(uid(1), uid(9))))).consumers
    assert one == first
    both = await rack.lookups.allocations(FindAllocations(consumers=(uid(2),)))
    assert [consumer.allocations for consumer in both.consumers] == [on_hosts(1, 3, VCPU=1)]
    assert both.generations == {A: 4, C: 4}
    of = await rack.lookups.allocations(FindAllocations(providers=(C, D, uid(9, "a"))))
    assert [
        (consumer.id, consumer.allocations, consumer.type, consumer.updated) for consumer in of.consumers
    ] == [
        (uid(2), on_hosts(3, VCPU=1), "INSTANCE", 1_000_005.0),
        (uid(3), on_hosts(3, DISK_GB=4), None, 1_000_005.0),
    ]
    assert of.generations == {C: 4, D: 0}
    some = await rack.lookups.allocations(FindAllocations(consumers=(uid(2),), providers=(A,)))
    assert [consumer.allocations for consumer in some.consumers] == [on_hosts(1, VCPU=1)]
    assert await rack.lookups.allocations(FindAllocations()) == type(some)(consumers=(), generations={})

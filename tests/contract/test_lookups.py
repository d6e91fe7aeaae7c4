"""Queries for providers, allocations and usages: equal on both databases, never stale."""

from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from bus.claims import ConsumerClaim
from bus.reports import Inventory
from bus.requests import ResourceGroup
from bus.resources import (
    AddInventory,
    ChangeProvider,
    Consumer,
    Edit,
    EditRequested,
    FindAllocations,
    FindUsages,
    Provider,
    SetTraits,
    UsagesFound,
)
from placement_worker import Placement, lookups
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_provider, an_order, on_hosts
from tests.support.placement_calls import find_providers, make_providers
from tests.support.virtual_time import TurnedClock

A, B, C, D = (uid(number, "a") for number in (1, 2, 3, 4))
X, Y = uid(1, "e"), uid(2, "e")
EIGHT = {"VCPU": Inventory(total=8)}


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


async def test_a_provider_is_shown_with_the_requested_parts(rack: Placement) -> None:
    bare = Provider(id=A, name="host-1", parent=None, root=A, generation=3, updated=1_000_000.0)
    shown: dict[tuple[str, ...], dict[str, Any]] = {
        (): {},
        ("inventories",): {"inventories": EIGHT, "used": {"VCPU": 6}},
        ("traits",): {"traits": ("COMPUTE_NODE", "CUSTOM_GOLD")},
        ("aggregates",): {"aggregates": (X,)},
    }
    for parts, more in shown.items():
        [one] = await find_providers(rack, ids=(A,), parts=parts)
        assert one == replace(bare, **more)
    [child] = await find_providers(rack, name="host-2")
    assert (child.parent, child.root) == (A, A)


async def test_traits_come_in_the_order_of_their_numbers(rack: Placement) -> None:
    gold = SetTraits(provider=D, traits=("CUSTOM_GOLD", "STORAGE_DISK_SSD", "HW_CPU_X86_AVX2"))
    await rack.providers.edit_many([EditRequested(edit=gold)])
    [one] = await find_providers(rack, ids=(D,))
    assert one.traits == ("HW_CPU_X86_AVX2", "STORAGE_DISK_SSD", "CUSTOM_GOLD")


async def test_updated_is_the_latest_time_of_the_shown_parts(rack: Placement, turned: TurnedClock) -> None:
    async def times() -> list[float]:
        parts: list[tuple[str, ...]] = [(), ("traits",), ("inventories", "traits")]
        return [(await find_providers(rack, ids=(D,), parts=part))[0].updated - 1_000_000.0 for part in parts]

    edits: list[Edit] = [
        ChangeProvider(provider=D, name="other"),
        SetTraits(provider=D, traits=("COMPUTE_NODE",)),
        AddInventory(provider=D, resource_class="VCPU", inventory=Inventory(total=1)),
    ]
    for edit in edits:
        turned.now += 10
        await rack.providers.edit_many([EditRequested(edit=edit)])
    assert await times() == [30, 30, 30]  # each change increased the generation
    turned.now += 10
    await rack.providers.edit_many([EditRequested(edit=ChangeProvider(provider=D, name="another"))])
    assert await times() == [40, 40, 40]


async def test_another_process_sees_commits_immediately(url: str, rack: Placement) -> None:
    async with a_placement(url) as other:
        new = a_provider(7, traits=("CUSTOM_SILVER",), inventories={"CUSTOM_PONY": Inventory(total=1)})
        await make_providers(rack, new)
        wanted = like(resources={"CUSTOM_PONY": 1}, required=("CUSTOM_SILVER",))
        assert await ids(other, **wanted) == {uid(7, "a")}
        assert (await find_providers(other, ids=(new.id,)))[0].traits == ("CUSTOM_SILVER",)
        await rack.claims.claim_many([an_order(a_claim(7, on_hosts(7, CUSTOM_PONY=1)))])
        assert await ids(other, **wanted) == set()


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


async def test_usages_are_summed_by_project_user_and_consumer_type(rack: Placement) -> None:
    await rack.claims.claim_many(
        [
            an_order(a_claim(2, on_hosts(1, 3, VCPU=1), type="MIGRATION")),
            an_order(a_claim(4, on_hosts(3, VCPU=1, DISK_GB=2), type="MIGRATION")),
            an_order(old(3, DISK_GB=4)),
        ]
    )

    async def usages(project: str, user: str = "") -> UsagesFound:
        return await rack.lookups.usages(FindUsages(project=project, user=user))

    whole = UsagesFound(
        used={"INSTANCE": {"VCPU": 6}, "MIGRATION": {"VCPU": 3, "DISK_GB": 2}},
        consumers={"INSTANCE": 1, "MIGRATION": 2},
    )
    assert await usages("p1") == await usages("p1", "u1") == whole
    assert await usages("p2") == UsagesFound(used={"unknown": {"DISK_GB": 4}}, consumers={"unknown": 1})
    assert await usages("p1", "u2") == await usages("nobody") == UsagesFound(used={}, consumers={})


async def test_usages_do_not_read_consumers_of_other_projects(placement: Placement) -> None:
    """Check the database's query plan; PostgreSQL must not prefer to read the whole small table."""
    made = lookups._USED.made(placement.database.dialect, False)
    async with placement.database.read() as tx:
        if placement.database.dialect == "postgresql":
            await tx.execute(text("SET LOCAL enable_seqscan = off"))
            rows = await tx.fetch(f"EXPLAIN {made.alone}", ["p1"] * len(made.names))
        else:
            rows = await tx.fetch(f"EXPLAIN QUERY PLAN {made.alone}", ["p1"] * len(made.names))
    plan = "\n".join(str(tuple(row)) for row in rows)
    assert "ix_consumers_project_id_user_id" in plan
    assert "Seq Scan on consumers" not in plan and "SCAN c" not in plan

"""Reports in parallel with operators' edits and claims lose no edit, and nothing is over-allocated."""

from msgspec import structs

from bus.claims import Refused
from bus.messages import InventoryReported
from bus.reports import Inventory
from bus.resources import Edit, Edited, Provider, SetInventory
from bus.sql.statement import sql
from placement_worker import Placement
from tests.support.ids import uid
from tests.support.placement_builders import (
    a_claim,
    a_provider,
    a_release,
    a_report,
    an_order,
    looking_for,
    on_hosts,
)
from tests.support.placement_calls import edit, find_providers, must_take, report, take

A, B, C = (uid(number, "a") for number in (1, 2, 3))
TOTAL = 8
MEMORY = {"MEMORY_MB": Inventory(total=1024)}


async def must_report(placement: Placement, *reports: InventoryReported) -> None:
    assert await report(placement, *reports) == [""] * len(reports)


async def must_edit(placement: Placement, one: Edit) -> None:
    assert isinstance(result := await edit(placement, one), Edited), result


async def shown(placement: Placement, provider: str) -> Provider:
    [one] = await find_providers(placement, ids=(provider,))
    return one


def a_shape(children: int, sequence: int) -> InventoryReported:
    """Return a report with all VCPUs at the root, or divided among `children` child providers."""
    share = {"VCPU": Inventory(total=TOTAL // children)} if children else {}
    below = [a_provider(2 + position, 1, inventories=share) for position in range(children)]
    return a_report(
        1, *below, sequence=sequence, inventories=MEMORY if children else {"VCPU": Inventory(total=TOTAL)}
    )


async def test_an_operator_can_release_withheld_amounts(placement: Placement) -> None:
    await must_report(placement, a_shape(0, 1))
    await placement.claims.claim_many([an_order(a_claim(1, on_hosts(1, VCPU=4)))])
    await must_report(placement, a_shape(2, 2))
    opened = SetInventory(provider=B, resource_class="VCPU", inventory=Inventory(total=4))
    await must_edit(placement, opened)
    await placement.reports.sweep()
    assert (await shown(placement, B)).inventories["VCPU"].reserved == 0


def a_node(class_: str, sequence: int, reserved: int = 0) -> InventoryReported:
    one = {class_: Inventory(total=1, reserved=reserved, max_unit=1)}
    return a_report(1, sequence=sequence, name=A, inventories=one)


async def offers(placement: Placement, class_: str) -> bool:
    return bool((await placement.find_candidates(looking_for({class_: 1}))).fitting)


async def test_a_node_whose_class_changed_is_claimable_again_with_the_release(placement: Placement) -> None:
    await must_report(placement, a_node("CUSTOM_ONE", 1))
    await must_take(placement, a_claim(1, on_hosts(1, CUSTOM_ONE=1)))
    await must_report(placement, a_node("CUSTOM_TWO", 2))
    assert not await offers(placement, "CUSTOM_TWO")
    [refused] = await take(placement, a_claim(2, on_hosts(1, CUSTOM_TWO=1)))
    assert isinstance(refused, Refused), refused
    await placement.reports.sweep()
    [refused] = await take(placement, a_claim(2, on_hosts(1, CUSTOM_TWO=1)))
    assert isinstance(refused, Refused), refused
    await placement.claims.release_many([a_release(1, 1)])
    assert (await shown(placement, A)).inventories == {"CUSTOM_TWO": Inventory(total=1, max_unit=1)}
    assert await offers(placement, "CUSTOM_TWO")
    await must_take(placement, a_claim(2, on_hosts(1, CUSTOM_TWO=1)))


async def test_a_closed_node_is_a_near_miss_with_the_reason(placement: Placement) -> None:
    await must_report(placement, a_node("CUSTOM_ONE", 1))
    closed = structs.replace(a_node("CUSTOM_ONE", 2, reserved=1), closed="maintenance")
    bare = structs.replace(closed.providers[0], inventories={})
    without_class = structs.replace(closed, sequence=3, providers=(bare,), closed="no class")
    for report_, lacks in (
        (closed, "1 CUSTOM_ONE: asked 1, free 0: the node is in maintenance"),
        (without_class, "1 CUSTOM_ONE: it has none: it has no resource class in Ironic"),
    ):
        await must_report(placement, report_)
        found = await placement.find_candidates(looking_for({"CUSTOM_ONE": 1}))
        assert [miss.lacks for miss in found.nearest] == [lacks]
    await must_report(placement, a_node("CUSTOM_ONE", 4))
    assert await offers(placement, "CUSTOM_ONE")
    assert (await shown(placement, A)).label_sources.closed == ""


async def test_an_operator_cannot_open_another_class_of_a_held_node(placement: Placement) -> None:
    await must_report(placement, a_node("CUSTOM_ONE", 1))
    await must_take(placement, a_claim(1, on_hosts(1, CUSTOM_ONE=1)))
    await must_report(placement, a_node("CUSTOM_TWO", 2))
    await must_edit(
        placement, SetInventory(provider=A, resource_class="CUSTOM_TWO", inventory=Inventory(total=1))
    )
    [refused] = await take(placement, a_claim(2, on_hosts(1, CUSTOM_TWO=1)))
    assert isinstance(refused, Refused), refused


async def test_a_report_after_a_failover_that_lost_standard_names_is_stored(placement: Placement) -> None:
    async with placement.database.write() as tx:
        await sql("DELETE FROM resource_classes WHERE name = 'VCPU' RETURNING id")(tx)
        await sql("DELETE FROM traits WHERE name = 'HW_CPU_X86_VMX' RETURNING id")(tx)
    placement.book.forget()  # as after each fail-over
    inventories = {"VCPU": Inventory(total=TOTAL), "CUSTOM_A": Inventory(total=1)}
    await must_report(placement, a_report(1, inventories=inventories, traits=("HW_CPU_X86_VMX",)))
    stored = await shown(placement, A)
    assert stored.inventories.keys() == {"VCPU", "CUSTOM_A"}
    assert stored.traits == ("HW_CPU_X86_VMX",)
    assert placement.book.classes.ids["VCPU"] == 0  # standard classes have fixed ids

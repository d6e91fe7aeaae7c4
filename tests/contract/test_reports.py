"""Reports in parallel with operators' edits and claims lose no edit, and nothing is over-allocated."""

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import text

from bus.messages import InventoryReported
from bus.reports import Inventory
from bus.resources import Edit, Edited, Provider, SetInventory
from placement_worker import Placement
from placement_worker.store import stored_trees
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_provider, a_release, a_report, an_order, on_hosts
from tests.support.placement_calls import edit, find_providers, report

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


SOLD = text(
    "SELECT SUM(used), SUM(CASE WHEN used > (total - reserved) * allocation_ratio THEN 0"
    " ELSE (total - reserved) * allocation_ratio - used END)"
    " FROM inventories WHERE resource_class_id = (SELECT id FROM resource_classes WHERE name = 'VCPU')"
)


async def sold(placement: Placement) -> tuple[int, int]:
    """Return the numbers of used VCPUs and of VCPUs that can be claimed now."""
    async with placement.database.read() as tx:
        sums: Sequence[Any] = (await tx.execute(SOLD)).one()
    used, free = sums
    return int(used), int(free)


@pytest.mark.parametrize("ratio", [1.0, 1.5, 16.0])
async def test_a_sweep_reads_only_trees_with_releasable_amounts(placement: Placement, ratio: float) -> None:
    """All hosts of a cloud may have withheld capacity for weeks, so sweeps must not delay claims."""

    def split(sequence: int, *totals: int) -> InventoryReported:
        share = [{"VCPU": Inventory(total=total, allocation_ratio=ratio)} for total in totals]
        below = [a_provider(1 + position, 1, inventories=one) for position, one in enumerate(share[1:], 1)]
        return a_report(1, *below, sequence=sequence, inventories=share[0] if totals[0] else MEMORY)

    async def swept() -> tuple[list[str], int]:
        async with placement.database.read() as tx:
            looked_at = [root for (root,) in await stored_trees.MAY_OPEN(tx)]
        before = (await sold(placement))[1]
        await placement.reports.sweep()
        return looked_at, (await sold(placement))[1] - before

    await must_report(placement, split(1, TOTAL))
    await placement.claims.claim_many(
        [an_order(a_claim(position, on_hosts(1, VCPU=2))) for position in (1, 2, 3)]
    )
    await must_report(placement, split(2, 0, TOTAL // 2, TOTAL // 2))
    opened = 0
    for position in (1, 2, 3):
        assert await swept() == ([], 0)
        await placement.claims.release_many([a_release(position, 1)])
        looked_at, more = await swept()
        assert bool(looked_at) == bool(more)
        opened += more
    assert sum(await sold(placement)) == int(TOTAL // 2 * ratio) * 2
    assert opened > 0 and await swept() == ([], 0)


async def test_an_operator_can_release_withheld_amounts(placement: Placement) -> None:
    await must_report(placement, a_shape(0, 1))
    await placement.claims.claim_many([an_order(a_claim(1, on_hosts(1, VCPU=4)))])
    await must_report(placement, a_shape(2, 2))
    opened = SetInventory(provider=B, resource_class="VCPU", inventory=Inventory(total=4))
    await must_edit(placement, opened)
    await placement.reports.sweep()
    assert (await shown(placement, B)).inventories["VCPU"].reserved == 0

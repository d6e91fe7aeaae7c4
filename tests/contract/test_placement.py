"""Placement's operations, the same on both databases, under redelivery and reordering."""

from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from berth.operations.stored_claims import allocations, retired
from bus.claims import Claimed, NoSuchProvider, Refused
from bus.messages import InventoryReported
from bus.replication import PlacementChanged
from bus.reports import Inventory
from bus.resources import FindAllocations
from bus.sql.failures import Conflict
from bus.vocabulary import Contended
from placement_worker import Placement
from placement_worker.store import changes, claims, stored_trees
from placement_worker.store.changes import CHANGES_A_MESSAGE
from tests.support.databases import recorded_statements
from tests.support.ids import uid
from tests.support.placement_builders import (
    a_claim,
    a_placement,
    a_provider,
    a_release,
    a_report,
    an_order,
    gone,
    looking_for,
    on_hosts,
)
from tests.support.placement_calls import claim, report
from tests.support.virtual_time import TurnedClock

VCPU = {"VCPU": Inventory(total=8)}


async def release(placement: Placement, *orders: object) -> list[object]:
    return [release.result for release in await placement.claims.release_many(orders)]  # type: ignore[arg-type]


async def offered(placement: Placement, **resources: int) -> list[str]:
    found = await placement.find_candidates(looking_for(resources or {"VCPU": 1}))
    return sorted(candidate.host for candidate in found.candidates)


async def test_conflicts_are_retried_and_then_reported(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    await report(placement, a_report(1))
    save, losing = claims.save_world, 2

    async def lose(*given: object) -> object:
        nonlocal losing
        changes = await save(*given)  # type: ignore[arg-type]
        if losing:
            losing -= 1
            raise Conflict("injected")
        return changes

    monkeypatch.setattr(claims, "save_world", lose)
    assert isinstance((await claim(placement, an_order(a_claim(1, on_hosts(1, VCPU=4)))))[0], Claimed)
    losing = 1000
    assert await claim(placement, an_order(a_claim(2, on_hosts(1, VCPU=4)))) == [Contended()]
    assert await release(placement, a_release(1, 1)) == [Contended()]
    losing = 0
    assert list(await allocations(placement.database)) == [uid(1)]


@pytest.mark.services
async def test_new_consumers_take_three_statements_however_many(
    placement_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statements: insert consumers and lock providers, read both, and write. Each is a round trip."""
    async with a_placement(placement_url) as placement:
        await report(placement, a_report(1), a_report(2))
        await claim(placement, an_order(a_claim(9, on_hosts(1, VCPU=1))))  # then project and user have ids
        statements = recorded_statements(monkeypatch)
        results = await claim(placement, *(an_order(a_claim(n, on_hosts(n, VCPU=1))) for n in (1, 2)))
    assert all(isinstance(result, Claimed) for result in results)
    assert len(statements) == 3


# Releases


async def test_retired_consumers_are_deleted_after_the_time_to_keep_them(
    placement: Placement, turned: TurnedClock
) -> None:
    placement.keep = 60.0
    await release(placement, a_release(1, None, "ended"), a_release(3, None, "shelved", revivable=True))
    turned.now += 50
    await release(placement, a_release(2, None, "ended"))
    await placement.prune()
    assert await retired(placement.database) == {uid(1), uid(2), uid(3)}
    turned.now += 20
    await placement.prune()
    assert await retired(placement.database) == {uid(2), uid(3)}  # the id of a shelved instance is not free


# Reports


def figures(placement: Placement, number: int) -> tuple[int, int]:
    """Return a provider's shape and generation in the index."""
    row = placement.memory.index.rows[uid(number, "a")]
    return row.shape, row.generation


async def test_a_deleted_tree_is_not_created_again_by_a_late_report(placement: Placement) -> None:
    await report(placement, a_report(1, a_provider(2, 1)))
    shape, _ = figures(placement, 1)
    assert await report(placement, gone(1, 3)) == [""]
    assert await claim(placement, an_order(a_claim(1, on_hosts(1)))) == [
        Refused(refusals=(NoSuchProvider(provider=uid(1, "a")),))
    ]
    await report(placement, a_report(1, sequence=2))
    assert placement.memory.index.rows == {}
    await report(placement, a_report(1, sequence=4))
    assert figures(placement, 1)[0] > shape  # never an earlier shape


async def test_a_deleted_tree_in_use_closes_and_is_removed_when_free(placement: Placement) -> None:
    await report(placement, a_report(1), a_report(2))
    await claim(placement, an_order(a_claim(1, on_hosts(1))))
    await report(placement, gone(1, 2))
    assert await offered(placement) == ["host-2"]
    await placement.reports.sweep()
    assert uid(1, "a") in placement.memory.index.rows
    await release(placement, a_release(1, 1))
    await placement.reports.sweep()
    assert list(placement.memory.index.rows) == [uid(2, "a")]


BAD = {
    "providers: empty": InventoryReported(root=uid(1, "a"), host="h", cell="c1", agent="a", sequence=1),
    "providers[0].id: ": InventoryReported(
        root=uid(1, "a"), host="h", cell="c1", agent="a", sequence=1, providers=(a_provider(2),)
    ),
    "providers[0].parent: ": a_report(1, parent=2),
    "providers[1].parent: only": a_report(1, a_provider(2)),
    "providers[1].parent: aaaaaaaa-0000-0000-0000-000000000009 is not in this tree": a_report(
        1, a_provider(2, 9)
    ),
    "providers[1].parent: aaaaaaaa-0000-0000-0000-000000000002 is its own ancestor": a_report(
        1, a_provider(2, 3), a_provider(3, 2)
    ),
    "providers[1].id: ": a_report(1, a_provider(1, 1, name="other")),
    "providers[0].inventories and traits: their names are": a_report(
        1, traits=tuple(f"CUSTOM_{number:0>200}" for number in range(600))
    ),
    "providers[1].name: 'host-1' is there twice": a_report(1, a_provider(2, 1, name="host-1")),
    "providers[0].inventories.VCPU.reserved: 9 exceeds the total 8": a_report(
        1, inventories={"VCPU": Inventory(total=8, reserved=9)}
    ),
    "providers[0].inventories.BOGUS: no such resource class": a_report(
        1, inventories={"BOGUS": Inventory(total=8)}
    ),
    "providers[0].inventories.CUSTOM_: no such resource class": a_report(
        1, inventories={"CUSTOM_": Inventory(total=8)}
    ),
    "providers[0].traits: no such trait HW_BOGUS": a_report(1, traits=("HW_BOGUS",)),
}


async def test_an_invalid_report_is_refused_with_the_field_and_delays_no_other(placement: Placement) -> None:
    outcomes = await report(placement, a_report(7), *BAD.values(), a_report(8))
    assert outcomes[0] == outcomes[-1] == ""
    for says, outcome in zip(BAD, outcomes[1:-1], strict=True):
        assert outcome.startswith(f"InventoryReported: {says}")
    assert await offered(placement) == ["host-7", "host-8"]


# The numbered changes, and several processes on one database


async def test_changes_during_a_reload_are_not_lost(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    await report(placement, a_report(1))
    load = stored_trees.load

    async def load_slowly(*given: Any) -> Any:
        found = await load(*given)
        monkeypatch.undo()
        await claim(placement, an_order(a_claim(1, on_hosts(1, VCPU=3))))
        await report(placement, a_report(2))
        return found

    monkeypatch.setattr(stored_trees, "load", load_slowly)
    await placement.memory.reload()
    assert placement.memory.index.seen == 3
    assert await offered(placement, VCPU=6) == ["host-2"]


async def announced(placement: Placement) -> list[PlacementChanged]:
    async with placement.database.read_single() as tx:
        return await changes.unpublished(tx, 1000)


async def test_a_large_commit_is_published_in_parts_that_fit_a_message(placement: Placement) -> None:
    await report(placement, *(a_report(number) for number in range(CHANGES_A_MESSAGE + 1)))
    assert [(change.number, len(change.changes)) for change in await announced(placement)] == [
        (1, CHANGES_A_MESSAGE),
        (2, 1),
    ]
    assert placement.memory.index.seen == 2


async def test_after_a_failover_the_ids_of_names_are_looked_up_again(placement: Placement) -> None:
    """The new primary lacks a project that this process has stored, and has given its id to another one."""
    await report(placement, a_report(1))
    await claim(placement, an_order(replace(a_claim(1, on_hosts(1)), project="lost")))
    async with placement.database.write() as tx:
        await tx.execute(text("UPDATE projects SET external_id = 'another' WHERE external_id = 'lost'"))
    placement.database.begin_new_history()
    await report(placement, a_report(2))
    await claim(placement, an_order(replace(a_claim(2, on_hosts(1)), project="lost")))
    found = await placement.lookups.allocations(FindAllocations(consumers=(uid(1), uid(2))))
    assert {consumer.id: consumer.project for consumer in found.consumers} == {
        uid(1): "another",
        uid(2): "lost",
    }

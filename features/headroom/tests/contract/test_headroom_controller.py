"""The headroom controller on both databases: slots follow hosts and instances; evacuations draw from them."""

from unittest.mock import AsyncMock

import pytest

from berth.kit.testing import allocations, placement_breaches
from bus.aggregates import AggregateEditRequested, MakeAggregate
from bus.errors import Unavailable
from bus.reports import Inventory
from bus.vocabulary import Allocations
from features.headroom.controller import HeadroomController
from features.headroom.messages import FindHeadroom
from features.headroom.problems import lost
from features.headroom.tests.support.kept_headroom import R1, adjusted, keep, report_three_hosts
from features.reservations.messages import FindReservations, choice_from
from features.reservations.operations import ReservationOperations
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_provider, a_release, a_report, on_hosts
from tests.support.placement_calls import must_take


@pytest.fixture(autouse=True)
async def hosts(placement: Placement) -> None:
    await report_three_hosts(placement)


async def boot(placement: Placement, consumer: int, host: int, vcpus: int = 4) -> None:
    await must_take(placement, a_claim(consumer, on_hosts(host, VCPU=vcpus)))


async def slots(placement: Placement) -> dict[str, tuple[str, int]]:
    """Return the host and the processors of each slot that holds something."""
    found = await placement.of(ReservationOperations).find(FindReservations(ids=(R1,)))
    held = {slot.consumer: slot.held for slot in found.slots.get(R1, ())}
    return {
        slot: (root, amounts["VCPU"]) for slot, of_slot in held.items() for root, amounts in of_slot.items()
    }


async def test_slots_follow_the_instances(placement: Placement) -> None:
    await keep(placement, "host")
    assert await slots(placement) == {}
    await boot(placement, 2, host=1)
    assert not (await placement.of(HeadroomController).find(FindHeadroom())).headrooms[0].kept
    found = await adjusted(placement)
    assert found.kept and (found.slots, found.domains, found.instances) == (1, 3, 1)
    [(root, vcpus)] = (await slots(placement)).values()
    assert root in (uid(2, "a"), uid(3, "a")) and vcpus == 4
    await placement.claims.release_many([a_release(2, "any")])
    await adjusted(placement)
    assert await allocations(placement.database) == {}
    assert await placement_breaches(placement.database) == []


async def test_a_rack_needs_slots_outside_of_the_rack(placement: Placement) -> None:
    for consumer, host in ((2, 1), (3, 2)):
        await boot(placement, consumer, host)
    await keep(placement, "rack")
    assert sorted((await slots(placement)).values()) == [(uid(3, "a"), 4)] * 2
    assert (await adjusted(placement)).kept


async def test_headroom_that_is_lost_is_a_problem_since_placement_knows_it(placement: Placement) -> None:
    await keep(placement, "host")
    for consumer, host in ((2, 1), (3, 2), (4, 3)):
        await boot(placement, consumer, host, vcpus=8)
    [headroom] = (await placement.of(HeadroomController).find(FindHeadroom())).headrooms
    [problem] = lost([headroom])
    assert problem.says == "Failover headroom does not cover the loss of any one host."
    assert problem.since == headroom.lost_since > 0
    [later] = (await placement.of(HeadroomController).find(FindHeadroom())).headrooms
    assert later.lost_since == headroom.lost_since
    for consumer in (2, 3, 4):
        await placement.claims.release_many([a_release(consumer, "any")])
    [kept] = (await placement.of(HeadroomController).find(FindHeadroom())).headrooms
    assert kept.lost_since == 0 and lost([kept]) == []


async def test_a_failed_adjustment_is_repeated(placement: Placement, monkeypatch: pytest.MonkeyPatch) -> None:
    await keep(placement, "host")
    await boot(placement, 2, host=1)
    with monkeypatch.context() as patched, pytest.raises(Unavailable):
        patched.setattr(placement.claims, "claim_many", AsyncMock(side_effect=Unavailable("no database")))
        await placement.of(HeadroomController).adjust()
    await adjusted(placement)
    assert len(await slots(placement)) == 1


async def test_a_slot_is_on_a_host_with_the_same_metadata_of_aggregates(placement: Placement) -> None:
    await boot(placement, 2, host=1)
    await keep(placement, "host")
    [(root, _)] = (await slots(placement)).values()
    of_tenant = MakeAggregate(
        aggregate=uid(3, "e"), name="tenant", metadata={"filter_tenant_id": "p9"}, hosts=(root,)
    )
    await placement.aggregates.edit(AggregateEditRequested(edit=of_tenant))
    assert (await adjusted(placement)).kept
    [(moved, _)] = (await slots(placement)).values()
    assert {moved, root} == {uid(2, "a"), uid(3, "a")}


async def test_an_evacuation_draws_the_slot_and_headroom_is_reserved_again(placement: Placement) -> None:
    await boot(placement, 2, host=1)
    await keep(placement, "host")
    [(slot, (root, _))] = (await slots(placement)).items()
    choice = choice_from(slot, {root: {"VCPU": 4}})
    move = a_claim(2, choice, generation=1, keep=30, begins=31)
    await must_take(placement, move)
    found = await adjusted(placement)
    assert found.kept and len(await slots(placement)) == 1
    assert slot not in await slots(placement)


async def with_cells(placement: Placement, *fast: int) -> None:
    """Give host 1 the NUMA cells 11 and 12, and so on, each with four dedicated processors. `fast` cells have
    a trait.
    """
    for host in (1, 2, 3):
        cells = [
            a_provider(
                cell,
                host,
                inventories={"PCPU": Inventory(total=4)},
                traits=("CUSTOM_FAST",) if cell in fast else (),
            )
            for cell in (10 * host + 1, 10 * host + 2)
        ]
        await placement.reports.report_many([a_report(host, *cells, sequence=2)])


async def pin(placement: Placement, consumer: int, *cells: int) -> None:
    await must_take(placement, a_claim(consumer, on_hosts(*cells, PCPU=4)))


async def held_by_slots(placement: Placement) -> list[Allocations]:
    found = await placement.of(ReservationOperations).find(FindReservations(ids=(R1,)))
    return [slot.held for slot in found.slots.get(R1, ())]


async def test_an_instance_on_two_numa_cells_gets_a_slot_on_two_cells(placement: Placement) -> None:
    await with_cells(placement)
    await pin(placement, 2, 11, 12)
    await pin(placement, 3, 21)
    await keep(placement, "host")
    found = await adjusted(placement)
    assert not found.kept  # host 3 has two cells, and both instances need a slot there
    assert "free capacity for 4 PCPU on providers like those of the instance's host" in found.lacking[0]
    assert await held_by_slots(placement) == [on_hosts(31, 32, PCPU=4)]
    await placement.claims.release_many([a_release(3, "any")])
    assert (await adjusted(placement)).kept
    assert await placement_breaches(placement.database) == []


async def test_instances_with_resources_of_a_shared_pool_are_not_covered(placement: Placement) -> None:
    pool = a_report(4, inventories={"DISK_GB": Inventory(total=100)}, traits=("MISC_SHARES_VIA_AGGREGATE",))
    await placement.reports.report_many([pool])
    both = on_hosts(1, VCPU=4) | on_hosts(4, DISK_GB=10)
    await must_take(placement, a_claim(2, both))
    await keep(placement, "host")
    assert (await adjusted(placement)).lacking == (
        "1 instances: instances with resources of shared pools are not covered",
    )

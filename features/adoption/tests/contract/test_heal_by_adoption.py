"""`berth audit heal` lets cells record guests without a build, and restored allocations."""

from collections.abc import AsyncIterator

import pytest

from berth.kit.testing import allocations
from berth.kit.testing import retired as stored_retired
from bus.guests import ReportedGuest
from placement_worker.testing import Placement
from tests.support.placement_builders import a_claim, a_release, on_hosts
from tests.support.placement_calls import must_take
from tests.support.witnessed_cell import HERE, LOST, WHO, WitnessedCell, retire_lost, witnessed_cell


@pytest.fixture
async def cell(url: str, placement: Placement) -> AsyncIterator[WitnessedCell]:
    async with witnessed_cell(url, placement) as cell:
        yield cell


async def test_lost_allocations_are_claimed_again_and_the_cell_is_informed(cell: WitnessedCell) -> None:
    assert await cell.finds() == []
    await cell.loses()
    assert [find.wrong for find in await cell.finds()] == ["missing"]
    assert await cell.heals() == [""]
    assert (await cell.finds(), await cell.held()) == ([], on_hosts(1, VCPU=2))


async def test_allocations_changed_after_the_check_are_not_healed(cell: WitnessedCell) -> None:
    await cell.takes(on_hosts(1, VCPU=3), 1)
    mending = cell.mending
    [mend] = await mending.judged(await cell.finds())
    await cell.takes(on_hosts(1, VCPU=4), 2)
    assert await mending.mend(mend) == "another client has claimed or released: try again"
    assert await cell.held() == on_hosts(1, VCPU=4)


async def test_an_instance_that_ended_after_the_check_is_not_healed(cell: WitnessedCell) -> None:
    await cell.loses()
    mending = cell.mending
    [mend] = await mending.judged(await cell.finds())
    await cell.placement.claims.release_many([a_release(7, None, "deleted")])
    assert await mending.mend(mend) == "it has ended for placement (deleted)"
    assert await cell.held() == {}


async def test_the_only_guest_of_a_lost_build_is_adopted_with_its_attempt(cell: WitnessedCell) -> None:
    cell.guests.append(ReportedGuest(LOST, 2, HERE, "running", on_hosts(1, VCPU=1)))
    assert await cell.repairs(WHO) == [""]
    stands = await cell.stands(LOST)
    assert stands is not None and stands.chosen is not None
    assert (stands.status, stands.attempt, stands.chosen.root) == ("active", 2, HERE)
    assert (await allocations(cell.placement.database))[LOST][1] == on_hosts(1, VCPU=1)
    assert [*await cell.finds(), *await cell.repairs(WHO, LOST)] == []


async def test_a_guest_whose_allocations_are_left_is_adopted_for_their_project(cell: WitnessedCell) -> None:
    claim = a_claim(8, on_hosts(1, VCPU=1), project="p2")
    await must_take(cell.placement, claim)
    cell.guests.append(ReportedGuest(LOST, 1, HERE, "running", on_hosts(1, VCPU=1)))
    assert await cell.repairs(WHO) == [""]
    stands = await cell.stands(LOST)
    assert stands is not None and stands.spec is not None
    assert (stands.spec.project, stands.spec.user) == ("p2", "u1")


async def test_a_guest_that_does_not_fit_its_host_is_not_adopted(cell: WitnessedCell) -> None:
    cell.guests.append(ReportedGuest(LOST, 1, HERE, "running", on_hosts(1, VCPU=1000)))
    [why] = await cell.repairs(WHO)
    assert (
        why.startswith("its resources cannot be claimed: it does not fit: ")
        and await cell.stands(LOST) is None
    )


async def test_a_guest_whose_id_was_retired_as_unplaceable_is_adopted_if_the_operator_chooses_so(
    cell: WitnessedCell,
) -> None:
    await retire_lost(cell, "no host fits", unplaceable=True)
    assert await cell.repairs(WHO, retired="adopt") == [""]
    stands = await cell.stands(LOST)
    assert stands is not None and (stands.status, stands.attempt) == ("active", 2)
    assert (await allocations(cell.placement.database))[LOST][1] == on_hosts(1, VCPU=1)
    assert LOST not in await stored_retired(cell.placement.database)
    assert [*await cell.finds(), *await cell.repairs(WHO, LOST)] == []

"""`berth heal` lets cells record guests without a build, and restored allocations."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from berth.operations.allocation_repairs import Mending
from berth.operations.stored_claims import allocations
from berth.operations.stored_claims import retired as stored_retired
from bus.claims import Claimed
from bus.guests import ReportedGuest
from bus.messages import AgentReported
from placement_worker import Placement
from tests.support.placement_builders import a_claim, a_release, an_order, on_hosts
from tests.support.placement_calls import claim
from tests.support.waiting import until
from tests.support.witnessed_cell import AGENT, HERE, LOST, WHO, WitnessedCell, retire_lost, witnessed_cell


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


@pytest.mark.parametrize("held", [on_hosts(2, VCPU=2), on_hosts(1, VCPU=3)])
async def test_allocations_that_cell_and_agent_contradict_are_claimed_again(
    cell: WitnessedCell, held: Any
) -> None:
    await cell.takes(held, 1)
    assert await cell.heals() == [""]
    assert (await cell.finds(), await cell.held()) == ([], on_hosts(1, VCPU=2))


async def test_allocations_changed_after_the_check_are_not_healed(cell: WitnessedCell) -> None:
    await cell.takes(on_hosts(1, VCPU=3), 1)
    mending = Mending(cell.bus)
    [mend] = await mending.judged(await cell.finds())
    await cell.takes(on_hosts(1, VCPU=4), 2)
    assert await mending.mend(mend) == "another client has claimed or released: try again"
    assert await cell.held() == on_hosts(1, VCPU=4)


async def test_an_instance_that_ended_after_the_check_is_not_healed(cell: WitnessedCell) -> None:
    await cell.loses()
    mending = Mending(cell.bus)
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


async def test_a_guest_is_adopted_with_the_allocations_that_placement_still_has(cell: WitnessedCell) -> None:
    held = on_hosts(1, VCPU=1)
    [claimed] = await claim(cell.placement, an_order(a_claim(8, held)))
    assert isinstance(claimed, Claimed)
    cell.guests.append(ReportedGuest(LOST, 1, HERE, "running", held))
    assert await cell.repairs(WHO) == [""]
    assert await cell.finds() == [] and await cell.stands(LOST) is not None


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


async def test_a_late_report_of_an_earlier_attempt_is_no_contradiction(
    cell: WitnessedCell, caplog: pytest.LogCaptureFixture
) -> None:
    cell.guests.append(ReportedGuest(LOST, 2, HERE, "running", on_hosts(1, VCPU=1)))
    assert await cell.repairs(WHO) == [""]
    failed = AgentReported(
        build=LOST, attempt=1, cell="c1", agent=AGENT, root=HERE, host="host-1", outcome="failed"
    )
    await cell.bus.publish(failed)
    await cell.bus.publish(replace(failed, attempt=2))
    await until(lambda: "reports its attempt 2" in caplog.text)
    assert "reports its attempt 1" not in caplog.text

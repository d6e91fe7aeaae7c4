"""The order in which claims with all rules lock rows, on PostgreSQL."""

import re

import pytest
from msgspec.structs import replace

from bus.claims import Claimed, ClaimRequested
from bus.parts import ClaimParts
from bus.requests import Flavor
from features.groups.messages import GroupEditRequested, MakeGroup
from features.groups.store import ServerGroups
from features.groups.tests.support.group_parts import joining
from features.preemption.messages import Preempts, Victim
from features.quotas.tests.support.limits import limit
from features.reservations.messages import (
    MakeReservation,
    Reservation,
    ReservationEditRequested,
    choice_from,
    slot_consumer,
)
from features.reservations.operations import ReservationOperations
from features.reservations.tests.support.reservation_parts import filling
from placement_worker.testing import LOCKS
from tests.support.databases import recorded_statements
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_report, on_hosts

SEASON = uid(1, "7")
GROUP = uid(1, "9")
TABLES = {
    "consumers": r"consumers c .*FOR UPDATE OF c",
    "projects": r"projects p .*FOR UPDATE OF p",
    "reservations": r"reservations r .*FOR SHARE OF r",
    "groups": r"server_groups g .*FOR UPDATE OF g",
    "providers": r"resource_providers p .*FOR NO KEY UPDATE OF p",
    "change number": r"UPDATE changes SET number",
}


@pytest.mark.services
async def test_claims_lock_rows_in_the_order_of_locks(
    placement_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_placement(placement_url) as placement:
        await placement.reports.report_many([a_report(number) for number in (1, 2)])
        await limit(placement, VCPU=99)
        make = MakeGroup(group=GROUP, name="web", policy="anti-affinity", project="p1")
        await placement.of(ServerGroups).edit(GroupEditRequested(edit=make))
        season = Reservation(id=SEASON, name="season", project="p1", flavor=Flavor(name="m", vcpus=4))
        await placement.of(ReservationOperations).edit(
            ReservationEditRequested(edit=MakeReservation(reservation=season))
        )
        slot = slot_consumer(SEASON, 1)
        filled = replace(
            a_claim(1, on_hosts(1, VCPU=4), type="RESERVATION", parts=filling(SEASON)), consumer=slot
        )
        existing = a_claim(2, on_hosts(2, VCPU=8))
        await placement.claims.claim_many([ClaimRequested(claims=(filled, existing))])
        statements = recorded_statements(monkeypatch)
        victim = Victim(build=uid(2), generation=1, attempt=1, holder=uid(3))
        preempts = Preempts(victims=(victim,), cell="c1", priority=5)
        draws = a_claim(4, choice_from(slot, on_hosts(1, VCPU=2)), parts=joining(GROUP))
        takes = a_claim(5, on_hosts(2, VCPU=1), parts=ClaimParts(preempts))
        [answer] = await placement.claims.claim_many([ClaimRequested(claims=(draws, takes))])
    assert all(isinstance(result, Claimed) for result in answer.results)
    locked = [name for sql in statements for name in LOCKS if re.search(TABLES[name], sql, re.DOTALL)]
    assert locked == list(LOCKS)

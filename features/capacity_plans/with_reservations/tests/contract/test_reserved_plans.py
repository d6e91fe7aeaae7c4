"""The page about capacity plans with capacity that reservations hold."""

import pytest

from bus.requests import Flavor
from features.capacity_plans.tests.support.plans import load_joins, nothing_known
from features.capacity_plans.with_reservations import added_to_plans
from features.reservations.messages import RESERVATIONS, Reservation, ReservationsFound, ReservedSlot
from tests.support.ids import uid
from tests.support.visited_room import a_visited_room

FAILOVER = Reservation(
    id=uid(9, "7"), name="headroom", flavor=Flavor(name="any"), use="failover", levels=("host",)
)


async def test_a_plan_names_reserved_capacity_that_counts_as_used(monkeypatch: pytest.MonkeyPatch) -> None:
    load_joins(monkeypatch, added_to_plans)
    named = Reservation(id=uid(1, "7"), name="season", flavor=Flavor(name="f"))
    slot = ReservedSlot(consumer=uid(1), allocations={}, held={uid(1, "a"): {"VCPU": 4, "MEMORY_MB": 2048}})
    slots = {named.id: (slot, slot), FAILOVER.id: (slot,)}
    found = ReservationsFound(reservations=(named, FAILOVER), slots=slots)
    async with a_visited_room(sent={**nothing_known(), RESERVATIONS.name: found}) as room:
        page = await room.page("/what-if/capacity?wait=1&mix=VCPU:1&add=1xVCPU:8")
    assert "reservations</a> counts as used: 4,096 MEMORY_MB, 8 VCPU." in page
    assert "failover headroom</a> counts as used: 2,048 MEMORY_MB, 4 VCPU." in page

"""Reservations, moves, plans and what-if answers."""

from typing import Any
from unittest.mock import AsyncMock

import pytest

from bus.messages import BuildRequested
from bus.queries import BuildsFound, InstancesFound
from bus.requests import Flavor
from features.moves.tests.support.moves_of_schedulers import moves_of
from features.planning.messages import PlanRoom
from features.planning.room_planning import RoomPlanner
from features.reservations.tests.contract.test_drawing import (
    LARGE,
    R1,
    SMALL,
    a_scheduler_for,
    fill_up,
    naming,
    placed_on,
    reason_of,
    reserve,
    undrawn,
)
from features.reservations.tests.contract.test_drawing import hosts as hosts
from features.reservations.tests.support.reservation_parts import naming as naming_it
from features.topology.messages import GangRole
from features.what_if.questions import WhatIfs
from placement_worker import Placement
from scheduler_worker.queries import CellQueries
from tests.support.scheduler_builders import a_request


def with_roles(number: int, *roles: tuple[int, int], **fields: Any) -> BuildRequested:
    """Return a request of project p1 with roles: processors and count of each."""
    gang = tuple(
        GangRole(name=f"r{at}", flavor=Flavor(name=f"f{at}", vcpus=vcpus), count=count)
        for at, (vcpus, count) in enumerate(roles)
    )
    several = sum(role.count for role in gang)
    flavor = gang[0].flavor
    return a_request(number, instances=several, flavor=flavor, roles=gang, project="p1", **fields)


async def test_each_role_draws_its_own_slots(hosts: Placement) -> None:
    scheduler = await a_scheduler_for(hosts)
    await reserve(hosts, scheduler)
    await fill_up(hosts)
    assert await placed_on(scheduler, naming(1, SMALL)) != [""]  # six of eight processors are left in a slot
    large, small = await placed_on(scheduler, with_roles(2, (8, 1), (6, 1), parts=naming_it(R1)))
    assert {small, large} != {""} and small != large
    assert await undrawn(hosts) == 0
    why = await reason_of(scheduler, with_roles(3, (8, 1), (6, 1), parts=naming_it(R1)))
    assert why == "reservation 'season': no undrawn slot fits (0 of 2 are undrawn)"


@pytest.mark.parametrize("roles", [(), ((8, 1), (8, 1))], ids=["equal", "roles"])
async def test_a_plan_that_makes_room_uses_hosts_without_slots_of_an_open_reservation(
    hosts: Placement, roles: tuple[tuple[int, int], ...]
) -> None:
    scheduler = await a_scheduler_for(hosts)
    await reserve(hosts, scheduler, use="open", count=1, hosts=("host-2",))
    two = with_roles(1, *roles) if roles else a_request(1, flavor=LARGE, project="p1", instances=2)
    placing = moves_of(scheduler, AsyncMock(return_value=BuildsFound(builds=()))).placing
    cells = CellQueries(
        builds=AsyncMock(return_value=BuildsFound(builds=())),
        instances=AsyncMock(return_value=InstancesFound(instances=())),
    )
    planned = await RoomPlanner(WhatIfs(scheduler), placing, cells).answer(PlanRoom(request=two))
    assert (planned.code, planned.moves) == ("", ())
    assert sorted(target.host for target in planned.targets) == ["host-1", "host-3"]


async def test_roles_without_a_fitting_slot_of_an_open_reservation_use_free_capacity(
    hosts: Placement,
) -> None:
    scheduler = await a_scheduler_for(hosts)
    await reserve(hosts, scheduler, use="open", count=2, hosts=("host-2",), flavor=Flavor(name="m", vcpus=4))
    large, *small = await placed_on(scheduler, with_roles(1, (8, 1), (4, 1)))
    assert large in ("host-1", "host-3") and small == ["host-2"]  # only the second role draws from the slot
    assert await undrawn(hosts) == 1
    # three instances do not fit into the slot that is left
    assert "" not in await placed_on(scheduler, with_roles(2, (3, 2), (2, 1), alternates=1))
    assert await undrawn(hosts) == 1
    assert (await reason_of(scheduler, with_roles(3, (8, 1), (4, 1)))).startswith("no valid host")
    assert await undrawn(hosts) == 1

"""Reservations, moves, plans and what-if answers."""

from unittest.mock import AsyncMock

import pytest

from bus.queries import BuildsFound, InstancesFound
from features.moves.tests.support.moves_of_schedulers import moves_of
from features.planning.messages import PlanRoom
from features.planning.room_planning import RoomPlanner
from features.reservations.tests.contract.test_drawing import LARGE, a_scheduler_for, reserve, with_roles
from features.reservations.tests.contract.test_drawing import hosts as hosts
from features.what_if.questions import WhatIfs
from placement_worker import Placement
from scheduler_worker.queries import CellQueries
from tests.support.scheduler_builders import a_request


@pytest.mark.parametrize("roles", [(), ((8, 1), (8, 1))], ids=["equal", "roles"])
async def test_a_plan_that_makes_room_uses_hosts_without_slots_of_an_open_reservation(
    hosts: Placement, roles: tuple[tuple[int, int], ...]
) -> None:
    scheduler = await a_scheduler_for(hosts)
    await reserve(hosts, scheduler, use="open", count=1, hosts=("host-2",))
    two = with_roles(1, *roles) if roles else a_request(1, flavor=LARGE, project="p1", instances=2)
    courses = moves_of(scheduler, AsyncMock(return_value=BuildsFound(builds=()))).courses
    cells = CellQueries(
        builds=AsyncMock(return_value=BuildsFound(builds=())),
        instances=AsyncMock(return_value=InstancesFound(instances=())),
    )
    planned = await RoomPlanner(WhatIfs(scheduler), courses, cells).answer(PlanRoom(request=two))
    assert (planned.code, planned.moves) == ("", ())
    assert sorted(target.host for target in planned.targets) == ["host-1", "host-3"]

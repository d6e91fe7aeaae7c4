"""Gangs that draw from reservations."""

from typing import Any

from bus.messages import BuildRequested
from bus.requests import Flavor
from features.reservations.tests.support.drawing import (
    a_scheduler_for,
    placed_on,
    reason_of,
    reserve,
    undrawn,
)
from features.reservations.tests.support.drawing import hosts as hosts
from features.topology.messages import GangRole
from placement_worker.testing import Placement
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

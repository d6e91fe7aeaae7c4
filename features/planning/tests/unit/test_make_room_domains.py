"""Plans that make room keep constraints on domains (pack, spread), and make room for several flavors."""

from collections.abc import Sequence

import numpy as np

from bus.candidates import Ints
from bus.packing import RowPacking
from features.planning.core.make_room import RoomPlan, plan_room
from features.planning.core.moved_cloud import CloudState, MovableInstance
from features.planning.core.room_demand import DomainLimit, RoomDemand, RoomPart
from tests.support.ids import uid

WHOLE = 16.0


def hosts(*free: float) -> CloudState:
    """Return hosts of 16 units with instances of 4 units that fill what is not free."""
    instances = {
        host: [
            MovableInstance(uid(10 * host + at), np.array([4.0]), np.ones(len(free), np.bool_))
            for at in range(int(WHOLE - each) // 4)
        ]
        for host, each in enumerate(free)
    }
    amounts = np.array(free, np.float64)[:, np.newaxis]
    return CloudState(RowPacking(("VCPU",), amounts, np.full((len(free), 1), WHOLE)), instances)


def parts(cloud: CloudState, *builds: tuple[float, int]) -> list[RoomPart]:
    everywhere = np.ones(len(cloud.packing.free), np.bool_)
    return [RoomPart(np.array([amount]), everywhere, count) for amount, count in builds]


def racks(*numbers: int) -> Ints:
    return np.array(numbers, np.intp)


def moved(plan: RoomPlan) -> list[tuple[int, int]]:
    return sorted((move.source, move.destination) for move in plan.moves)


def test_packed_builds_get_hosts_in_the_domain_with_the_fewest_moves() -> None:
    cloud = hosts(8, 4, 4, 8, 8, 4)  # two builds of 12: one move each in racks 1 and 3, which have 8 free
    demand = RoomDemand(parts(cloud, (12, 2)), packed=racks(1, 1, 2, 3, 3, 2))
    plan = plan_room(cloud, demand, 9)
    assert (plan.code, sorted(plan.targets), len(plan.moves)) == ("", [3, 4], 2)


def test_builds_spread_over_domains_and_members_that_are_there_count() -> None:
    cloud = hosts(12, 12, 8, 16)
    limit = DomainLimit(racks(1, 1, 2, 0), 1)
    plan = plan_room(cloud, RoomDemand(parts(cloud, (12, 2)), [limit]), 9)
    assert (plan.code, sorted({plan.targets[0] < 2, plan.targets[1] < 2})) == ("", [False, True])
    assert moved(plan) in ([(2, 0)], [(2, 1)], [(2, 3)])
    full = DomainLimit(limit.domains, 1, {1: 1})
    plan = plan_room(cloud, RoomDemand(parts(cloud, (12, 2)), [full]), 9)
    assert (plan.code, plan.targets) == ("no_host", (2,))


def test_each_role_gets_hosts_for_builds_of_its_flavor() -> None:
    cloud = hosts(12, 8, 4)
    plan = plan_room(cloud, RoomDemand(parts(cloud, (16, 1), (4, 2))), 9)
    assert (plan.code, plan.targets, moved(plan)) == ("", (0, 1, 1), [(0, 2)])


def test_a_domain_that_fits_more_of_the_builds_now_comes_first() -> None:
    cloud = hosts(4, 8, 16, 0)
    demand = RoomDemand(parts(cloud, (8, 2)), packed=racks(1, 1, 2, 2))
    order: Sequence[int] = demand.in_reading_order(cloud).tolist()
    assert order == [2, 3, 1, 0]

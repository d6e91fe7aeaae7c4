"""Instances with a share of a full pool: simultaneous moves, and the alternates of a boot."""

import pytest
from msgspec.structs import replace

from berth.kit.testing import placement_breaches
from bus.claims import Choice, Claimed
from bus.messages import BuildPlaced, Selection
from bus.reports import SHARES, Inventory
from bus.requests import Flavor
from features.moves.messages import MovePlaced, MoveRequested
from features.moves.tests.support.move_builders import Cells, a_build_that_stands, a_move
from features.moves.tests.support.moves_of_schedulers import moves_of
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_report, an_order, on_hosts
from tests.support.placement_calls import claim
from tests.support.scheduler_builders import a_request
from tests.support.schedulers import scheduler_of

POOL, SHARE = uid(9, "a"), {"DISK_GB": 20}
FLAVOR = Flavor(name="f", vcpus=1, disk_gb=20)


@pytest.fixture
def url() -> str:
    """Return one type of database: tests of placement run its statements on both."""
    return "sqlite+aiosqlite://"


async def report_hosts(placement: Placement, hosts: int, disk_gb: int) -> None:
    """Report hosts without disks, and a pool with disks that they share."""
    rack, vcpus = (uid(1, "d"),), {"VCPU": Inventory(total=64)}
    for number in range(1, hosts + 1):
        await placement.reports.report_many([a_report(number, aggregates=rack, inventories=vcpus)])
    disks = {"DISK_GB": Inventory(total=disk_gb)}
    await placement.reports.report_many([a_report(9, inventories=disks, traits=(SHARES,), aggregates=rack)])


async def instances_on_full_pool(placement: Placement, several: int) -> tuple[Cells, list[MoveRequested]]:
    """Place instances on host 1, which hold the whole pool together; return them, and requests to move
    them.
    """
    await report_hosts(placement, 3, 20 * several)
    cells = Cells()
    held = {**on_hosts(1, VCPU=1), POOL: SHARE}
    for build in range(1, several + 1):
        [done] = await claim(placement, an_order(a_claim(build, held, project="mine")))
        assert isinstance(done, Claimed)
        stands = a_build_that_stands(build=uid(build), generation=1, cell="c1")
        spec = replace(stands.placed.spec, flavor=FLAVOR, project="mine")
        chosen = Selection(root=uid(1, "a"), host="host-1", agent="agent-1", choice=Choice(held))
        cells.know(replace(stands, chosen=chosen, spec=spec, placed=replace(stands.placed, spec=spec)))
    asked = [a_move(500 + build, "live", build=uid(build), cell="c1") for build in range(1, several + 1)]
    return cells, asked


async def test_ten_simultaneous_moves_on_a_full_pool_all_begin(placement: Placement) -> None:
    cells, asked = await instances_on_full_pool(placement, 10)
    moves = moves_of(scheduler_of(placement), cells.find)
    for [answer] in await moves.place_many(asked):  # type: ignore[misc]
        assert isinstance(answer, MovePlaced), answer
    assert placement.memory.index.rows[POOL].free["DISK_GB"] == 0
    assert await placement_breaches(placement.database) == []


async def test_alternates_of_a_boot_use_its_own_share_of_the_pool(placement: Placement) -> None:
    await report_hosts(placement, 3, 30)
    [[placed]] = await scheduler_of(placement).place_many([a_request(flavor=FLAVOR, alternates=2)])  # type: ignore[misc]
    assert isinstance(placed, BuildPlaced)
    hosts = {placed.chosen.root, *(each.root for each in placed.alternates)}
    assert hosts == {uid(1, "a"), uid(2, "a"), uid(3, "a")}
    assert placement.memory.index.rows[POOL].free["DISK_GB"] == 10

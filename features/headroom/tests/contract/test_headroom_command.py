"""`berth host headroom` sets, shows and unsets failover headroom; and whether claims would end it."""

import pytest

from berth.kit import BadSetting
from berth.kit.testing import allocations
from bus.domains import LabelEditRequested
from bus.errors import OperationRefused
from bus.requests import Flavor
from features.headroom.controller import HeadroomController
from features.headroom.tests.support.headroom_command import Run
from features.headroom.tests.support.headroom_command import placement as placement
from features.headroom.tests.support.headroom_command import run as run
from features.reservations.messages import (
    FindReservations,
    LevelsCovered,
    LevelsUnknown,
    MakeReservation,
    Reservation,
    ReservationEdited,
    ReservationEditRequested,
    ReservationResult,
)
from features.reservations.operations import ReservationOperations
from placement_worker.testing import Placement
from tests.support.ids import uid


async def test_headroom_is_set_shown_and_unset(placement: Placement, run: Run) -> None:
    assert "headroom is kept for any one host" in await run("set", "host")
    await placement.of(HeadroomController).adjust()
    assert "any one host: kept; 1 slots for 1 instances in 2 domains" in await run("show")
    assert "already" in await run("set", "host")
    assert "no headroom is kept" in await run("set", "none")
    assert list(await allocations(placement.database)) == [uid(2)]
    with pytest.raises(OperationRefused, match="no headroom is kept"):
        await run("show")


async def test_a_level_that_no_label_can_have_is_refused_and_changes_nothing(
    placement: Placement, run: Run
) -> None:
    await run("set", "host")
    with pytest.raises(BadSetting, match="'rack 7%': a level is `host`, or a word"):
        await run("set", "rack 7%")
    await placement.of(HeadroomController).adjust()
    assert "any one host: kept" in await run("show")


async def labelled(placement: Placement) -> None:
    """Give each host a rack of its own."""
    for host in (1, 2):
        edit = LabelEditRequested(roots=(uid(host, "a"),), set={"rack": f"r{host}"})
        await placement.reports.label(edit)


async def test_a_level_of_which_no_host_has_a_label_is_refused_and_changes_nothing(
    placement: Placement, run: Run
) -> None:
    await run("set", "host")
    await placement.of(HeadroomController).adjust()
    await labelled(placement)
    with pytest.raises(OperationRefused, match=r"level rak; did you mean rack.*: host, rack"):
        await run("set", "rak")
    with pytest.raises(OperationRefused, match="level planet"):
        await run("set", "host", "planet", "--replace")
    await placement.of(HeadroomController).adjust()
    assert "any one host: kept; 1 slots" in await run("show")


async def test_headroom_that_is_replaced_keeps_its_slots_until_the_operator_accepts_the_loss(
    placement: Placement, run: Run
) -> None:
    await run("set", "host")
    await placement.of(HeadroomController).adjust()
    await labelled(placement)
    with pytest.raises(
        OperationRefused, match=r"any one host \(1 slot\).*loss of any one host.*--replace does it"
    ):
        await run("set", "rack")
    assert "any one host: kept; 1 slots" in await run("show")
    assert "from now on, and no more for any one host" in await run("set", "rack", "--replace")
    assert "any one rack: " in await run("show")


async def test_a_further_level_is_added_to_the_present_headroom(placement: Placement, run: Run) -> None:
    await run("set", "host")
    await placement.of(HeadroomController).adjust()
    before = await allocations(placement.database)
    await labelled(placement)
    assert "any one rack or host from now on" in await run("set", "rack", "host")
    assert await allocations(placement.database) == before
    assert "already" in await run("set", "host", "rack")


async def test_the_bus_refuses_unknown_levels_and_a_replacement_that_is_not_named(
    placement: Placement,
) -> None:
    edit = placement.of(ReservationOperations).edit

    async def make(*levels: str, replaces: tuple[str, ...] = ()) -> ReservationResult:
        made = Reservation(
            id=uid(len(levels), "7"),
            name="headroom",
            flavor=Flavor(name="any"),
            use="failover",
            levels=levels,
        )
        order = ReservationEditRequested(edit=MakeReservation(reservation=made, replaces=replaces))
        return (await edit(order)).result

    assert await make("planet") == LevelsUnknown(levels=("planet",), known=("host",))
    assert isinstance(await make("host"), ReservationEdited)
    await labelled(placement)
    assert await make("rack") == LevelsCovered(levels=("host",), dropped=("host",))
    replaced = await make("rack", replaces=("host",))
    assert isinstance(replaced, ReservationEdited) and replaced.reservation.levels == ("rack",)
    found = await placement.of(ReservationOperations).find(FindReservations())
    assert [each.levels for each in found.reservations] == [("rack",)]

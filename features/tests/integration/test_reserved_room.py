"""`berth move make-room --reserve`: the room is reserved for a project."""

import asyncio

from features.planning.tests.support.embedded_room import LARGE, waits
from features.planning.tests.support.embedded_room import berth as berth
from features.reservations.messages import RESERVATIONS, FindReservations, every_reservation
from tests.support.living_berth import LivingBerth
from tests.support.waiting import until


async def test_only_the_project_gets_the_room_that_is_reserved(berth: LivingBerth) -> None:
    other = asyncio.create_task(berth("boot", *LARGE, "--project", "b", "--wait", "1h", "--json"))
    await until(lambda: waits(berth))
    sent = await berth("move", "make-room", *LARGE, "--project", "a", "--reserve", "10m")
    assert "done: 1 move" in sent and "reserved for project a until" in sent
    found = await every_reservation(berth.bus.asker(RESERVATIONS), FindReservations(project="a"))
    assert [(each.count, each.hosts) for each in found.reservations] == [(1, ("c1-host00002",))]
    assert await waits(berth) and not other.done()
    assert (await berth.boot(*LARGE, "--project", "a"))[1] == "c1-host00002"
    other.cancel()

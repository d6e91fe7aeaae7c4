"""Pages of reservations, with moves."""

from bus.queries import BuildsFound
from features.moves.messages import MovesFound, MoveStands
from features.reservations.messages import RESERVATIONS, Reservation, ReservationsFound
from features.reservations.tests.contract.test_control_room_reservations import placement as placement
from features.reservations.tests.contract.test_control_room_reservations import room as room
from tests.contract.test_control_room_builds import FLAVOR, NOTHING, STANDS
from tests.support.ids import uid
from tests.support.visited_room import a_visited_room


async def test_the_page_of_a_build_names_its_reservation_and_the_plan_that_moved_it() -> None:
    season = Reservation(id=uid(5), name="season", project="shop", flavor=FLAVOR)
    move = MoveStands(
        move=uid(4), build=uid(7), kind="live", cell="c1", phase="done", note="makes room for x"
    )
    told = {
        **NOTHING,
        "builds": BuildsFound(builds=(STANDS,)),
        "moves": MovesFound(moves=(move,)),
        RESERVATIONS.name: ReservationsFound(reservations=(season,)),
    }
    async with a_visited_room(told=told) as room:
        page = await room.page(f"/builds/{uid(7)}")
    assert 'Draws from reservation <a href="/reservations">season</a> of project shop.' in page
    assert "<td>makes room for x</td>" in page

"""Plans of failover headroom, and moves."""

from unittest.mock import AsyncMock

from bus.clock import Clock
from bus.requests import BuildSpec, Flavor
from features.headroom.tests.support.evacuations import HEADROOM
from features.moves.core.start import MovePurpose, MoveStart
from features.moves.tests.support.move_builders import MOVE, a_move, on_host
from features.reservations.drawn_reservations import DrawnReservations
from features.reservations.messages import ReservationsFound, ReservedSlot
from scheduler_worker.extension import Order
from tests.support.ids import uid
from tests.support.index_source import RecordingSource
from tests.support.rule_builders import a_wish
from tests.support.scheduler_builders import a_candidate, a_request


async def test_an_evacuation_draws_first_from_slots_on_hosts_of_its_kind() -> None:
    hosts = [a_candidate(1), a_candidate(2, traits=("CUSTOM_FAST",)), a_candidate(3)]
    size, roots = a_wish().asked, [host.root for host in hosts]
    slots = tuple(
        ReservedSlot(consumer=uid(number), allocations={root: size}, held={root: size}, roots=(root,))
        for number, root in enumerate(roots[1:])
    )
    find = AsyncMock(return_value=ReservationsFound(reservations=(HEADROOM,), slots={HEADROOM.id: slots}))
    drawn = DrawnReservations(find, RecordingSource(hosts), Clock())
    drawn.learn([HEADROOM])
    move = MoveStart(a_move(kind="evacuate"), "c1", 1, 1, on_host(1), BuildSpec(flavor=Flavor(name="small")))
    purpose = MovePurpose.of(move)
    order = Order(a_request(1), attempts=((a_wish(),),), instances=(MOVE,), purpose=purpose)
    [order] = await drawn.prepare([order], again=False)
    assert [each.question.roots for each in order.alternatives] == [(roots[2],), (roots[1], roots[2]), ()]

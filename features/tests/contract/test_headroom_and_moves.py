"""Reservations of failover headroom, and moves."""

from dataclasses import replace

from bus.claims import Choice
from bus.messages import Selection
from bus.requests import BuildSpec, Flavor
from features.headroom.tests.contract.test_headroom_controller import (
    adjusted,
    held_by_slots,
    keep,
    with_cells,
)
from features.headroom.tests.contract.test_headroom_controller import hosts as hosts
from features.moves.core.start import MovePurpose, MoveStart
from features.moves.tests.support.move_builders import MOVE, a_move
from features.reservations.core.drawing import draw_of
from features.reservations.drawn_reservations import DrawnReservations
from features.reservations.messages import FindReservations
from features.reservations.operations import ReservationOperations
from placement_worker import Placement
from scheduler_worker.core.order import Order
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, an_order, looking_for, on_hosts
from tests.support.rule_builders import a_wish
from tests.support.scheduler_builders import a_request
from tests.support.schedulers import narrowing_of, scheduler_of


async def test_evacuations_draw_the_slots_with_the_form_of_their_instances(placement: Placement) -> None:
    await with_cells(placement)
    held = {2: on_hosts(11, PCPU=2), 3: on_hosts(21, 22, PCPU=1)}  # both have two processors
    for consumer, allocations in held.items():
        await placement.claims.claim_many([an_order(a_claim(consumer, allocations))])
    await keep(placement, "host")
    assert (await adjusted(placement)).kept
    slots = await held_by_slots(placement)
    scheduler = scheduler_of(placement)
    draws = narrowing_of(scheduler, DrawnReservations)
    draws.learn((await placement.of(ReservationOperations).find(FindReservations())).reservations)
    drawn = []
    for consumer, allocations in held.items():
        source = Selection(root=uid(consumer - 1, "a"), host="h", agent="a", choice=Choice(allocations))
        spec = BuildSpec(flavor=Flavor(name="pinned"))
        start = MoveStart(a_move(kind="evacuate"), "c1", 1, 1, source, spec)
        wish = replace(a_wish(), question=looking_for({"PCPU": 2}))
        purpose = MovePurpose(start)
        order = Order(a_request(1), attempts=((wish,),), instances=(MOVE,), purpose=purpose)
        [order] = await draws.prepare([order], again=False)
        first = draw_of(order.preferred)
        assert first is not None
        drawn += [slot.held for slot in first.slots]
    assert len(slots) == 2 and sorted(map(len, drawn)) == [1, 2]

"""The part of planning in a scheduler: searches for moves, and the plans that make room or rebalance."""

from bus.worker import WorkerRows, answers
from features.moves.messages import FIND_MOVES
from features.moves.placing import MovePlacing
from features.moves.plans import MovePlans
from features.planning.balance_planning import BalancePlanner
from features.planning.joint_rules import JointPlacing
from features.planning.making_room import RoomMaking
from features.planning.messages import PLAN_BALANCE, PLAN_ROOM, WHAT_IF_MOVES
from features.planning.rebalancing import Rebalancing
from features.planning.room_planning import RoomPlanner
from features.planning.supposed_moves import WhatIfsOfMoves
from features.what_if.questions import WhatIfs
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    scheduler, plans = needs.scheduler, needs.of(MovePlans)
    placement, clock = scheduler.placement, scheduler.clock
    what_ifs, placing = needs.of(WhatIfs), needs.of(MovePlacing)
    joint = JointPlacing()
    rooms = RoomPlanner(what_ifs, placing, needs.cells, joint)
    making_room = RoomMaking(rooms.answer, plans, placement, scheduler.source, clock)
    evaluation = WhatIfsOfMoves(what_ifs, placing, joint)
    balance = BalancePlanner(what_ifs, rooms)
    rebalancing = Rebalancing(balance.answer, placement, clock, plans.wake)
    plans.add_kind(rebalancing)
    plans.add_kind(making_room)
    return SchedulerPart(
        offers=(rooms, evaluation, joint),
        rows=WorkerRows(
            asks=(FIND_MOVES,),
            answers=[
                answers(WHAT_IF_MOVES, evaluation.answer),
                answers(PLAN_ROOM, rooms.answer),
                answers(PLAN_BALANCE, balance.answer),
            ],
            runs=[rebalancing.searches.run, making_room.searches.run],
        ),
    )


PART = ForScheduler(part)

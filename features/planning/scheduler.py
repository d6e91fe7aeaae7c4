"""The part of planning in a scheduler: plans of moves, hosts closed for plans, and guarded exchanges."""

from bus.worker import WorkerRows, answers, every, prune_period
from features.moves.messages import FIND_MOVES, MOVE_REQUESTED
from features.moves.placing import MovePlacing
from features.planning.balance_planning import BalancePlanner
from features.planning.exchanges import CHECK_SECONDS, ExchangeGuard
from features.planning.host_holds import OPEN_SECONDS, HostHolds
from features.planning.messages import (
    GUARD_EXCHANGE,
    HOLD_HOSTS,
    PLAN_BALANCE,
    PLAN_ROOM,
    SWITCH_BALANCING,
    WHAT_IF_MOVES,
)
from features.planning.room_planning import RoomPlanner
from features.planning.supposed_moves import WhatIfsOfMoves
from features.what_if.questions import WhatIfs
from scheduler_worker.extension import SchedulerNeeds, SchedulerPart


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    scheduler, database, keep = needs.scheduler, needs.database, needs.options.keep
    placement, clock = scheduler.placement, scheduler.clock
    what_ifs, placing = needs.of(WhatIfs), needs.of(MovePlacing)
    rooms = RoomPlanner(what_ifs, placing, needs.cells)
    holds = HostHolds(database, placement, scheduler.source, clock)
    exchanges = ExchangeGuard(database, placement, placing.lookups.find_moves, scheduler.ending, clock)
    return SchedulerPart(
        offers=(rooms,),
        rows=WorkerRows(
            asks=(FIND_MOVES,),
            answers=[
                answers(WHAT_IF_MOVES, WhatIfsOfMoves(what_ifs, placing).answer),
                answers(PLAN_ROOM, rooms.answer),
                answers(PLAN_BALANCE, BalancePlanner(what_ifs, rooms).answer),
                answers(HOLD_HOSTS, holds.hold),
                answers(GUARD_EXCHANGE, exchanges.store),
                answers(SWITCH_BALANCING, holds.switch_balancing),
            ],
            timers=[
                every(OPEN_SECONDS, holds.open_expired),
                every(CHECK_SECONDS, exchanges.step, emits=[MOVE_REQUESTED]),
                every(prune_period(keep), lambda: exchanges.prune(keep)),
            ],
        ),
    )

"""The part of moves in a scheduler: their claims, handovers between cells, and plans of moves."""

from bus import topics
from bus.projects import ClientQuery, FindOwners, FindProjects, NotAllowed, ProjectMember, is_of
from bus.protocol import Ask
from bus.worker import WorkerRows, every, on_many, prune_period
from features.moves.emptying import HostEmptying
from features.moves.handovers import REPEAT_SECONDS, Handovers
from features.moves.lookups import MoveLookups
from features.moves.messages import (
    FIND_MOVES,
    MOVE_CONFLICT,
    MOVE_HALF,
    MOVE_HANDOVER,
    MOVE_PLACED,
    MOVE_REFUSED,
    MOVE_REQUESTED,
    FindMoves,
    MoveConflict,
    MovePlaced,
    MoveRefused,
    MoveRequested,
    MovesFound,
)
from features.moves.placing import MovePlacing
from features.moves.plans import MovePlans
from scheduler_worker.extension import (
    TRIES_UNDELIVERABLE,
    ForScheduler,
    RefusalRecords,
    SchedulerNeeds,
    SchedulerPart,
)

CELL_SECONDS = 5.0  # for a cell's answer; the wait also delays moves in other cells


def of_clients(moves: Ask[FindMoves, MovesFound]) -> ClientQuery:
    """Return the query by which members of projects read the moves of their instances."""

    async def find(question: FindMoves, client: ProjectMember, find_owners: FindOwners) -> MovesFound:
        if not question.moves and not question.builds:
            raise NotAllowed("moves: name the moves or builds")
        found = await moves(question)
        builds = tuple(sorted({move.build for move in found.moves}))
        projects = (await find_owners(FindProjects(existing=builds))).projects
        mine = [move for move in found.moves if is_of(client, projects.get(move.build))]
        return MovesFound(moves=tuple(mine))

    return ClientQuery(FindMoves, find)


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    scheduler, database, keep = needs.scheduler, needs.database, needs.options.keep
    placement, clock = scheduler.placement, scheduler.clock
    find_moves = needs.asker(FIND_MOVES, timeout=CELL_SECONDS)
    handovers = Handovers(database, placement, scheduler.ending, clock)
    lookups = MoveLookups(
        scheduler.source, scheduler.ending, placement, needs.cells, find_moves, scheduler.orders.options
    )
    placing = MovePlacing(scheduler, lookups, handovers, RefusalRecords(database, scheduler.clock).add)
    plans = MovePlans(database, find_moves, scheduler.source, clock, needs.publish)
    plans.add_kind(HostEmptying(placement, needs.cells, scheduler.source, clock))
    of_plans = plans.rows()
    return SchedulerPart(
        offers=(lookups, placing, plans),
        client_queries={"moves": of_clients(find_moves)},
        builds_of=(lookups.builds_of,),
        rows=WorkerRows(
            asks=(FIND_MOVES,),
            announces=frozenset({MovePlaced, MoveRefused, MoveConflict, MoveRequested}),
            consumes=[
                on_many(
                    MOVE_REQUESTED,
                    placing.place_many,
                    emits=[MOVE_PLACED, MOVE_REFUSED, MOVE_CONFLICT, MOVE_HANDOVER],
                    on_unroutable=placing.undoing.undo_placed,
                    undeliverable_after=TRIES_UNDELIVERABLE,
                    concurrency=needs.options.concurrency,
                ),
                on_many(
                    MOVE_HALF,
                    handovers.handle_many,
                    emits=[MOVE_PLACED, MOVE_HANDOVER, topics.BUILD_DELETE],
                    on_unroutable=handovers.on_unroutable,
                    undeliverable_after=TRIES_UNDELIVERABLE,
                    concurrency=needs.options.concurrency,
                ),
                *of_plans.consumes,
            ],
            answers=of_plans.answers,
            timers=[
                every(REPEAT_SECONDS, handovers.repeat_handovers, emits=[MOVE_HANDOVER]),
                every(prune_period(keep), lambda: handovers.prune(keep)),
                every(prune_period(keep), lambda: plans.prune(keep)),
            ],
            runs=of_plans.runs,
            stops=of_plans.stops,
        ),
    )


PART = ForScheduler(part)

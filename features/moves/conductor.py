"""The part of moves in the conductor of a cell."""

from bus.worker import WorkerRows, answers, on_many
from cell_conductor.extension import CellBuilds, ConductorNeeds, ConductorPart, EndedOrders, ForConductor
from features.moves.cell_moves import CellMoves, MoveStore, prune
from features.moves.core.course import MovesCourse
from features.moves.core.phases import removed_report
from features.moves.messages import (
    AGENT_MOVE,
    AGENT_MOVED,
    FIND_MOVES,
    MOVE_CONFLICT,
    MOVE_ENDED,
    MOVE_HALF,
    MOVE_HANDOVER,
    MOVE_PLACED,
    MOVE_PROGRESS,
    MOVE_STEER,
    MoveOrdered,
    MoveReported,
)

LINGER = 0.02  # seconds to wait for further reports: a transaction for fifty costs as much as for one


def part(needs: ConductorNeeds, settings: None) -> ConductorPart:
    cell = needs.cell

    def rows(builds: CellBuilds) -> WorkerRows:
        moves, receive, effects = CellMoves(builds), builds.receive_many, builds.effects
        return WorkerRows(
            consumes=[
                on_many(MOVE_PLACED.at(cell=cell), moves.place_many, emits=effects),
                on_many(MOVE_HANDOVER.at(cell=cell), receive, emits=effects),
                on_many(AGENT_MOVED.at(cell=cell), receive, emits=effects, concurrency=1, linger=LINGER),
                on_many(MOVE_STEER.at(cell=cell), receive, emits=effects),
            ],
            answers=[answers(FIND_MOVES, moves.find, cell=cell)],
        )

    return ConductorPart(
        courses=(MovesCourse(),),
        stores=(MoveStore(),),
        prunes=(prune,),
        effects=(AGENT_MOVE, AGENT_MOVED, MOVE_HALF, MOVE_ENDED, MOVE_CONFLICT, MOVE_PROGRESS),
        ended_orders=(EndedOrders(MoveOrdered, MoveReported, removed_report),),
        repeats=(AGENT_MOVE, AGENT_MOVED, MOVE_HALF),
        rows=rows,
    )


PART = ForConductor(part)

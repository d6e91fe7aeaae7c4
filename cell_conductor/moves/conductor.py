"""The part of moves in the conductor of a cell."""

from collections.abc import Sequence
from typing import Any

from bus import topics
from bus.addressing import Topic
from bus.topics import AGENT_MOVE, AGENT_MOVED, MOVE_HALF
from bus.worker import answers, on_many
from cell_conductor.extension import CellBuilds, ConductorPart, ConductorRows
from cell_conductor.moves.core.course import MovesCourse
from cell_conductor.moves.handlers import CellMoves
from cell_conductor.moves.store import MoveStore, prune

LINGER = 0.02  # seconds to wait for further reports: a transaction for fifty costs as much as for one


def _rows(cell: str, builds: CellBuilds, effects: Sequence[Topic[Any]]) -> ConductorRows:
    moves, receive = CellMoves(builds), builds.receive_many
    return ConductorRows(
        consumes=[
            on_many(topics.MOVE_PLACED.at(cell=cell), moves.place_many, emits=effects),
            on_many(topics.MOVE_HANDOVER.at(cell=cell), receive, emits=effects),
            on_many(AGENT_MOVED.at(cell=cell), receive, emits=effects, concurrency=1, linger=LINGER),
            on_many(topics.MOVE_STEER.at(cell=cell), receive, emits=effects),
        ],
        answers=[answers(topics.FIND_MOVES, moves.find, cell=cell)],
    )


PART = ConductorPart(
    courses=(MovesCourse(),),
    stores=(MoveStore(),),
    prunes=(prune,),
    effects=(AGENT_MOVE, AGENT_MOVED, MOVE_HALF, topics.MOVE_ENDED, topics.MOVE_PROGRESS),
    repeats=(AGENT_MOVE, AGENT_MOVED, MOVE_HALF),
    rows=_rows,
)

"""Answers what would become of moves, for `--dry-run` of their commands."""

from collections.abc import Sequence

from bus.delivery.runner import Bus
from bus.resources import Provider
from bus.vocabulary import portions
from features.moves.messages import MoveRequested
from features.moves.supposed_moves import AT_ONCE, DryRuns
from features.planning.messages import WHAT_IF_MOVES, WhatIfMoves
from features.what_if.messages import WhatIfAnswered

SECONDS = 30.0  # time limit for the evaluation of moves


async def supposed(
    bus: Bus, moves: Sequence[MoveRequested], closed: Sequence[Provider]
) -> list[WhatIfAnswered]:
    """Return a scheduler's what-if answer for each move. Each query has at most AT_ONCE moves, and evaluates
    a move as if the query's earlier moves were done. No move may go to a host in `closed`.
    """
    ask, roots = bus.asker(WHAT_IF_MOVES, timeout=SECONDS), tuple(host.id for host in closed)
    answers: list[WhatIfAnswered] = []
    for some in portions(moves, AT_ONCE):
        answers += (await ask(WhatIfMoves(moves=some, closed=roots))).answers
    return answers


PART = DryRuns(supposed)

"""Explains a move in `berth why`, and the planned moves of a build."""

import asyncio
from collections.abc import Sequence

from berth.kit import BuildExplanation, Cli, ExplainingPart, Happening, KnownRecords, ask_cells
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.masking import printable
from bus.queries import BuildStands
from features.moves.commands.move_list import facts_of
from features.moves.commands.moves import print_supposed
from features.moves.messages import FIND_MOVES, FindMoves, MoveStands, decided_move
from features.moves.moving import supposed

SECONDS = 5.0  # time limit for the answers of cells


async def reasons(
    bus: Bus, id_: str, stands: Sequence[BuildStands], cells: Sequence[str]
) -> Sequence[BuildExplanation]:
    """Return the move with this id, and the moves of the build with this id for which a plan or client gave a
    reason.
    """
    find = bus.asker(FIND_MOVES, timeout=SECONDS)
    (moves, _), (of_build, _) = await asyncio.gather(
        ask_cells(cells, lambda cell: find(FindMoves(cell=cell, moves=(id_,)))),
        ask_cells(cells, lambda cell: find(FindMoves(cell=cell, builds=(id_,)))),
    )
    found = [
        BuildExplanation(
            "\n".join(facts_of(move)), move, at=move.since, decision=move.decision, subject="a move"
        )
        for answer in moves.values()
        for move in answer.moves
    ]
    planned = [
        BuildExplanation(_planned(move), move, at=move.since)
        for answer in of_build.values()
        for move in answer.moves
        if move.note and not move.in_cell
    ]
    return [*found, *planned]


async def happened(
    bus: Bus, id_: str, stands: Sequence[BuildStands], cells: Sequence[str]
) -> Sequence[Happening]:
    """Return when the moves of the builds began and ended."""
    builds = tuple(build.build for build in stands)
    if not builds:
        return ()
    find = bus.asker(FIND_MOVES, timeout=SECONDS)
    found, _ = await ask_cells(cells, lambda cell: find(FindMoves(cell=cell, builds=builds)))
    moves = [move for answer in found.values() for move in answer.moves if not move.in_cell]
    begun = [Happening(move.since, f"{move.kind} {move.move} began on {move.source}") for move in moves]
    ended = [Happening(move.ended, _ended(move)) for move in moves if move.ended]
    return [each for each in (*begun, *ended) if each.at]


def _ended(move: MoveStands) -> str:
    where = f", on {move.at}" if move.at else ""
    reason = f": {move.reason}" if move.reason else ""
    return f"{move.kind} {move.move} ended: {move.phase}{where}{reason}"


def _planned(move: MoveStands) -> str:
    way = f"from {printable(move.source or '-')} to {printable(move.host or '-')}"
    return f"  {move.kind} {move.move} {way}, {move.phase}: {printable(move.note)}"


async def decide_now(cli: Cli, bus: Bus, known: KnownRecords) -> int | None:
    """Show what would become of a requested move now; return None if the records are not of a move."""
    if known.subject:
        raise OperationRefused("it has started: `berth instance move --dry-run` asks about another")
    if (move := decided_move(known.decided)) is None:
        return None
    return print_supposed(cli, [move], await supposed(bus, [move]))


PART = ExplainingPart(happened=happened, reasons=reasons, decide_now=decide_now)

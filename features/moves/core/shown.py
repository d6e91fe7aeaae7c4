"""Prepares moves for pages."""

from collections.abc import Iterable
from dataclasses import dataclass

from features.moves.messages import MoveStands

VERIFYING = ("verify", "verifying")  # phases in which a move waits for the operator

_PHASES = {
    "prepare": "preparing on {host}",
    "send": "copying to {host}",
    "start": "starting on {host}",
    "back": "returning to {host}",
    "resume": "resuming on {host}",
    "build": "building on {host}",
    "rebuild": "rebuilding on {host}",
    "swap": "failed on {host}: trying the next host",
    "undo": "returning to its source",
    "revert": "returning to its source",
    "abort": "returning to its source",
    "confirm": "confirmed on {host}: releasing the source",
    "away": "left its cell",
}
_ENDS = {
    "done": "done",
    "reverted": "returned to its source",
    "aborted": "aborted: it is at its source",
    "error": "not done",
    "deleted": "deleted",
}


@dataclass(frozen=True, kw_only=True)
class MoveShown:
    """A move as pages show it."""

    stands: MoveStands
    says: str
    state: str  # good, warn, bad; empty: in progress
    attempt: int  # number of the attempt
    took: float | None  # None: the phase is in progress
    may: tuple[str, ...]  # permitted operations: confirm, revert, abort, force

    @property
    def id(self) -> str:
        return self.stands.move


def move_shown(move: MoveStands) -> MoveShown:
    """Return a move as pages show it, with a sentence about its state."""
    host = move.towards or "its host"
    waits = move.phase in VERIFYING
    if move.in_cell:
        description = f"continues in cell {move.in_cell}"
    elif move.ended:
        description = _ENDS.get(move.phase, move.phase)
    elif waits:
        description = f"runs on {host}, waits for confirmation or revert"
    else:
        known = _PHASES.get(move.phase)
        description = known.format(host=host) if known else f"{move.phase} on {host}"
    states = {"done": "good", "error": "bad"}
    state = states.get(move.phase, "warn") if move.ended else ""
    return MoveShown(
        stands=move,
        says=description,
        state="warn" if waits else state,
        attempt=sum(each.outcome != "built" for each in move.attempts) + 1,
        took=max(0.0, move.ended - move.since) if move.ended else None,
        may=_may(move, waits),
    )


def _may(move: MoveStands, waits: bool) -> tuple[str, ...]:
    if move.ended or move.in_cell or move.phase in ("undo", "revert", "abort", "confirm"):
        return ()
    if waits:
        return "confirm", "revert"
    return ("abort", "force") if move.kind == "live" and move.phase == "send" else ("abort",)


def merged_moves(found: Iterable[MoveStands]) -> list[MoveStands]:
    """Return each move once, newest first. If two cells list a move, return the entry of the cell that now
    runs it.
    """
    every = list(found)
    known = {move.move for move in every if not move.in_cell}
    one_each = {move.move: move for move in every if not move.in_cell or move.move not in known}
    return sorted(one_each.values(), key=lambda merged_move: (-merged_move.since, merged_move.move))

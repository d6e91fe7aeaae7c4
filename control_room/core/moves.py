"""Moves and drains prepared for pages: what is done, what runs, and which acts are allowed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bus.moves import MoveStands

VERIFYING = ("verify", "verifying")  # it goes no further by itself
A_DAY = 86_400.0

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
    stands: MoveStands
    says: str
    state: str  # good, warn, bad, or empty: under way
    attempt: int  # number of the host that is tried
    took: float | None  # None: it runs
    may: tuple[str, ...]  # acts that an operator may choose

    @property
    def id(self) -> str:
        return self.stands.move


def move_shown(move: MoveStands) -> MoveShown:
    host = move.towards or "its host"
    waits = move.phase in VERIFYING
    if move.in_cell:
        says = f"continues in cell {move.in_cell}"
    elif move.ended:
        says = _ENDS.get(move.phase, move.phase)
    elif waits:
        says = f"runs on {host}, waits for confirmation or revert"
    else:
        known = _PHASES.get(move.phase)
        says = known.format(host=host) if known else f"{move.phase} on {host}"
    states = {"done": "good", "error": "bad"}
    state = states.get(move.phase, "warn") if move.ended else ""
    return MoveShown(
        stands=move,
        says=says,
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
    """Return each move once, the newest first; if two cells report a move, the report of the cell that runs
    it.
    """
    every = list(found)
    known = {move.move for move in every if not move.in_cell}
    one_each = {move.move: move for move in every if not move.in_cell or move.move not in known}
    return sorted(one_each.values(), key=lambda one: (-one.since, one.move))


# Drains


@dataclass(frozen=True, kw_only=True)
class DrainShown:
    root: str
    host: str
    cell: str
    left: int | None  # instances on the host; None: its cell does not answer
    moved: int
    running: int
    causes: tuple[str, ...]  # other causes that the host is closed for
    runs_here: bool  # this control room runs it
    problem: str
    unmoved: tuple[tuple[str, str], ...] = ()  # build, and the reason

    @property
    def share(self) -> float:
        """Return the share of a host's guests that have left."""
        if self.left is None:
            return 0.0
        return self.moved / (self.moved + self.left) if self.left else 1.0


def moved_away(host: str, moves: Sequence[MoveStands], now: float) -> int:
    """Return how many of the moves left the host within a day and since a guest last came there; the moves
    are given newest first.
    """
    count = 0
    for move in moves:
        if not move.ended or move.phase != "done":
            continue
        if now - move.ended > A_DAY or move.source != host:
            break
        count += 1
    return count

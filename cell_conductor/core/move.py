"""A move of a build as its conductor knows it, and what is said of it to whoever asked.

From its beginning the build's own consumer holds the destination, and its attempt is the destination's. What
the move remembers is the way back: where the guest was, which attempt it is, and what it was built as.
"""

from typing import Literal

import msgspec
from msgspec.structs import replace

from bus.messages import Attempt
from bus.moves import (
    WAY_BACK,
    HandoverReported,
    MoveEnd,
    MoveEnded,
    MoveKind,
    MovePlaced,
    MoveStands,
    MoveTold,
    PhaseOver,
)
from bus.requests import BuildSpec
from bus.vocabulary import Message, Value

Phase = Literal[
    "prepare",  # the destination holds what the guest needs
    "send",  # the source stops it and copies, or copies while it runs; or makes its image
    "start",  # the destination runs it
    "build",  # the destination builds it anew
    "rebuild",  # the same host puts another in its place
    "verify",  # it runs there, and somebody is to say whether it stays
    "swap",  # placement is asked for the next destination
    "undo",  # what may run at the destination is destroyed first
    "back",  # placement is asked for the source's room
    "resume",  # the source runs it again
    "destroy",  # the source destroys what has been shelved
    "release",  # placement takes back what is held
    "away",  # it has been let go: what becomes of it is another cell's
    "recall",  # the scheduler is told that it does not go, and is to say what it holds then
]
Over = Literal["done", "failed", "timed out", "given up"]

KEPT: tuple[MoveKind, ...] = ("migrate", "resize", "live", "evacuate")  # whose source a keeper holds
BUILT: tuple[MoveKind, ...] = ("evacuate", "unshelve")  # built anew
HALF: tuple[Phase, ...] = ("away", "recall")  # in which the scheduler is told, and waited for
ASKING: tuple[Phase, ...] = ("swap", "back", "release")  # for which placement is asked
AT_SOURCE: tuple[Phase, ...] = ("prepare", "send", "swap", "back", "resume")  # while the guest is there
MAX_CAUSE = 4000  # characters, as in vocabulary.Cause
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class BuildMove(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The move a build is in, or was in last."""

    placed: MovePlaced  # without the record of its decision
    phase: Phase
    since: float
    began: float  # the phase
    step: int = 0  # of the last order: greater than of any before, of any move of this build
    first: int = 1  # number of its attempts
    highest: int = 1  # number of an attempt given so far
    source: int = 0  # which of the build's hosts, while it is open
    left: str = ""  # the name of that host
    was: int = 0  # the attempt of the guest that moves
    before: BuildSpec | None = None  # what the build was; None: as placed
    host: str = ""  # the destination's name
    percent: int = 0
    sent: bool = False  # the source was told to: its guest may have stopped
    forced: bool = False
    may_run: bool = False  # what is to be destroyed at the destination
    afresh: bool = False  # nobody keeps the source's room any more: it is claimed anew
    # How it ends, once that is back where it was; leaving: or is gone
    goal: Literal["", "error", "reverted", "aborted", "deleted"] = ""
    cause: str = ""
    end: Literal["", "done", "reverted", "aborted", "error", "deleted"] = ""  # set once, never changed
    ended: float = 0.0
    at_host: str = ""  # where the instance is then
    at_root: str = ""
    phases: tuple[PhaseOver, ...] = ()
    attempts: tuple[Attempt, ...] = ()  # of the destinations
    half: Literal["", "leaving", "arriving"] = ""  # of a move to another cell: this one's
    to_cell: str = ""  # leaving: that other
    silent: bool = False  # the other half says how it ended

    @property
    def id(self) -> str:
        return self.placed.move

    @property
    def kind(self) -> MoveKind:
        return self.placed.kind

    @property
    def is_open(self) -> bool:
        return not self.end

    @property
    def kept(self) -> bool:
        """Does a keeper hold the source's room, which is of this cell?"""
        return self.kind in KEPT and self.half != "arriving"

    @property
    def asks(self) -> str:
        """What an answer of placement names, that it be no answer to what was asked before."""
        return f"{self.phase} afresh" if self.afresh else self.phase

    @property
    def leaves(self) -> bool:
        """It is about to leave its cell, or has been let go, and may come back."""
        return self.half == "leaving" and (self.phase == "send" or self.phase in HALF)

    @property
    def elsewhere(self) -> str:
        """The cell that knows what becomes of it, or became; empty: this one."""
        if self.half == "leaving":
            return self.to_cell if self.silent or (self.is_open and self.phase == "away") else ""
        return self.placed.out_of if self.silent else ""

    @property
    def goes_back(self) -> bool:
        """Else an undo makes way for the next destination."""
        return self.phase in WAY_BACK and (self.phase != "undo" or bool(self.goal))

    @property
    def shown(self) -> str:
        """What is under way, for people; or how it ended."""
        if self.end:
            return self.end
        if self.phase == "undo":
            if not self.goes_back:
                return "swap"
            return {"reverted": "revert", "aborted": "abort"}.get(self.goal, "undo")
        return self.phase


def without_record(placed: MovePlaced) -> MovePlaced:
    """As it is remembered: the record of the decision is for who asks, and its build knows its boot."""
    if placed.booted is not None:
        placed = replace(placed, booted=None)
    if placed.decision.record is None:
        return placed
    return replace(placed, decision=replace(placed.decision, record=None))


def phase_over(move: BuildMove, host: str, outcome: Over, cause: str, now: float) -> BuildMove:
    over = PhaseOver(move.phase, host, outcome, cause[:MAX_CAUSE], move.began, now)
    return replace(move, phases=(*move.phases, over))


def closed(move: BuildMove, end: MoveEnd, reason: str, host: str, root: str, now: float) -> BuildMove:
    return replace(
        move,
        end=end,
        ended=now,
        cause=reason[:MAX_CAUSE],
        at_host=host,
        at_root=root,
    )


def never_begun(placed: MovePlaced, end: MoveEnd, why: str, now: float) -> BuildMove:
    """It came when there was nothing to move any more."""
    move = BuildMove(placed=without_record(placed), phase="prepare", since=now, began=now)
    move = replace(move, host=placed.chosen.host if placed.chosen else "")
    return closed(move, end, why, "", "", now)


def told(move: BuildMove, refused: str = "", reply_to: str | None = None) -> MoveTold:
    placed = move.placed
    return MoveTold(
        move=move.id,
        build=placed.build,
        cell=placed.cell,
        phase=move.shown,
        host=move.left if move.goes_back else move.host,
        percent=move.percent,
        refused=refused[:MAX_CAUSE],
        reply_to=placed.reply_to if reply_to is None else reply_to,
    )


def ended(move: BuildMove) -> MoveEnded:
    """The same words every time."""
    assert move.end, f"move {move.id} is not over"
    placed = move.placed
    return MoveEnded(
        move=move.id,
        build=placed.build,
        kind=move.kind,
        cell=placed.cell,
        end=move.end,
        host=move.at_host,
        root=move.at_root,
        reason=move.cause,
        phases=move.phases,
        attempts=move.attempts,
        decision=placed.decision,
        reply_to=placed.reply_to,
    )


def half_told(move: BuildMove) -> HandoverReported:
    """What this half has come to, for the scheduler. The same words every time."""
    outcome: Literal["ready", "failed", "arrived", "back", "deleted"]
    if move.half == "leaving":
        outcome = "ready" if move.phase == "away" else "deleted" if move.goal == "deleted" else "failed"
    else:
        outcome = "deleted" if move.end == "deleted" else "back" if move.silent else "arrived"
    assert move.half, f"move {move.id} stays in its cell"
    return HandoverReported(
        move=move.id,
        build=move.placed.build,
        cell=move.placed.cell,
        half=move.half,
        outcome=outcome,
        above=move.highest,
        steps=move.step,
        end=move.end or move.goal or "error",
        cause=move.cause,
        phases=move.phases if move.half == "arriving" else (),
        attempts=move.attempts,
    )


def end_told(move: BuildMove) -> tuple[Message, ...]:
    """How it ended: to whoever asked, and to the scheduler where another cell waits for that."""
    said: tuple[Message, ...] = () if move.silent else (ended(move),)
    return (*said, half_told(move)) if move.half == "arriving" else said


def move_stands(move: BuildMove) -> MoveStands:
    """What is told of it to whoever asks."""
    return MoveStands(
        move=move.id,
        build=move.placed.build,
        kind=move.kind,
        cell=move.placed.cell,
        phase=move.shown,
        source=move.left,
        host=move.host,
        at=move.at_host,
        percent=move.percent,
        since=move.since,
        ended=move.ended,
        reason=move.cause,
        phases=move.phases,
        attempts=move.attempts,
        decision=move.placed.decision,
        in_cell=move.elsewhere,
    )


def verify_seconds(move: BuildMove) -> float:
    """After so long it is confirmed; 0: only when somebody says so."""
    wait = move.placed.verify_for
    return float(int(wait[:-1]) * _SECONDS[wait[-1]]) if wait else 0.0


encode_move = msgspec.json.Encoder().encode
decode_move = msgspec.json.Decoder(BuildMove).decode
decode_placed = msgspec.json.Decoder(MovePlaced).decode

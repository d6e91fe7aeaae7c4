"""Defines the state of a move in its cell, and makes the messages about the move.

As soon as a move begins, the build's consumer holds the destination's resources, and the build has the
attempt number of the destination's guest. To return the build if the move fails, the move's record has the
source host, the attempt number of the source's guest, and the build's former spec (flavor and image).
"""

from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from bus import parts
from bus.messages import Attempt
from bus.requests import BuildSpec
from bus.vocabulary import MAX_CAUSE, Message, Value
from cell_conductor.extension import Build, BuildParts, Status
from features.moves import messages as moves

Phase = Literal[
    "prepare",  # the destination's agent prepares for the guest
    "send",  # the source's agent stops and copies the guest, copies it while it runs, or makes its image
    "start",  # the destination's agent starts the guest
    "build",  # the destination's agent builds the guest again
    "rebuild",  # the agent replaces the guest on the same host
    "verify",  # the guest runs at the destination until the move is confirmed or reverted
    "swap",  # placement must claim the next destination
    "undo",  # agents destroy guests that may run at destinations
    "back",  # placement must claim the source's resources for the build again
    "resume",  # the source's agent starts the guest again
    "destroy",  # the source's agent destroys the guest of the shelved instance
    "release",  # placement must release the build's resources
    "away",  # another cell has the build, and decides how the move continues
    "recall",  # the move was cancelled: the scheduler must claim the source's resources again
]
# what is shown of a build that its move has: in a move, in another cell, or shelved until the next move
HeldStatus = Literal["moving", "verifying", "shelved", "moved"]
PhaseOutcome = Literal["done", "failed", "timed out", "given up"]
HalfOutcome = Literal["ready", "failed", "arrived", "back", "deleted", "delete"]

# types of moves in which a holder consumer has the source's resources
KEPT: tuple[moves.MoveKind, ...] = ("migrate", "resize", "live", "evacuate")
BUILT: tuple[moves.MoveKind, ...] = ("evacuate", "unshelve")  # moves that build the guest anew
HALF: tuple[Phase, ...] = ("away", "recall")  # phases of a move between cells that wait for the scheduler
ASKING: tuple[Phase, ...] = ("swap", "back", "release")  # phases that wait for placement
# phases in which the guest is at the source
AT_SOURCE: tuple[Phase, ...] = ("prepare", "send", "swap", "back", "resume")


class BuildMove(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a move of an instance to another host, such as a migration: the move in progress or, if
    none is, the last one.
    """

    placed: moves.MovePlaced  # the scheduler's order, without the decision record
    phase: Phase
    since: float
    began: float  # when the phase began
    step: int = 0  # number of the last order; each order of a move of this build has a higher one
    first: int = 1  # number of the move's first attempt
    highest: int = 1  # highest attempt number so far
    source: int = 0  # index of the source in `Build.hosts`, until the move ends
    left: str = ""  # name of the source host
    was: int = 0  # attempt number of the guest at the source; 0: no guest
    before: BuildSpec | None = None  # the build's spec before the move; None: as placed
    host: str = ""  # name of the destination host
    percent: int = 0
    sent: bool = False  # True if the source was ordered to send the guest, which may have stopped
    forced: bool = False
    may_run: bool = False  # True if a guest left behind at a destination may run
    afresh: bool = False  # True if no consumer holds the source, so its resources must be claimed anew
    # how the move will end when the build is back at its source or deleted; empty: it has not failed
    goal: Literal["", "error", "reverted", "aborted", "deleted"] = ""
    cause: str = ""
    end: Literal["", "done", "reverted", "aborted", "error", "deleted"] = ""  # never changed once set
    ended: float = 0.0
    at_host: str = ""  # name of the instance's host when the move ended
    at_root: str = ""
    phases: tuple[moves.PhaseOver, ...] = ()
    attempts: tuple[Attempt, ...] = ()  # finished attempts at destinations
    half: Literal["", "leaving", "arriving"] = ""  # of a move between cells: this cell's part
    to_cell: str = ""  # name of the destination cell, if the build leaves this cell
    silent: bool = False  # True if the other cell reports the end of the move

    @property
    def id(self) -> str:
        return self.placed.move

    @property
    def kind(self) -> moves.MoveKind:
        return self.placed.kind

    @property
    def is_open(self) -> bool:
        return not self.end

    @property
    def source_is_held(self) -> bool:
        """Return whether a holder consumer in this cell holds the resources of the move's source."""
        return self.kind in KEPT and self.half != "arriving"

    @property
    def asks(self) -> str:
        """Return a name for the claim or release that the move requested from placement. The event of the
        answer has this name, so that a late answer to an earlier request is recognized.
        """
        return f"{self.phase} afresh" if self.afresh else self.phase

    @property
    def leaves(self) -> bool:
        """Return whether the build is leaving its cell, or has left it and may return."""
        return self.half == "leaving" and (self.phase == "send" or self.phase in HALF)

    @property
    def elsewhere(self) -> str:
        """Return the name of the other cell if the build of this move is there now; "" if it is here."""
        if self.half == "leaving":
            return self.to_cell if self.silent or (self.is_open and self.phase == "away") else ""
        return self.placed.out_of if self.silent else ""

    @property
    def is_returning(self) -> bool:
        """Return whether the move failed or was cancelled, and the build returns to the source host."""
        return self.phase in moves.WAY_BACK and (self.phase != "undo" or bool(self.goal))

    @property
    def shown(self) -> str:
        """Return the state to show to users: the phase of a move in progress, or an ended move's result."""
        if self.end:
            return self.end
        if self.phase == "undo":
            return {"": "swap", "reverted": "revert", "aborted": "abort"}.get(self.goal, "undo")
        return self.phase


class MovePart(msgspec.Struct, frozen=True):
    """The state that the feature keeps about a build in `Build.parts`."""

    move: BuildMove | None = None  # current or last move


class MoveImpossible(msgspec.Struct, frozen=True):
    """The event that this cell cannot carry out a move that the scheduler placed, and must undo its claim."""

    placed: moves.MovePlaced
    why: str


class MoveEndedBefore(msgspec.Struct, frozen=True):
    """The event that the scheduler's order of an ended move, which is not the build's last, is repeated."""

    move: BuildMove


def last_move(build: Build | None) -> BuildMove | None:
    """Return the current or last move of a build."""
    state = build.parts.get(MovePart) if build is not None else None
    return state.move if state is not None else None


def move_in_progress(parts: BuildParts) -> BuildMove | None:
    """Return the move that a build with these parts is in."""
    state = parts.get(MovePart)
    return state.move if state is not None and state.move is not None and state.move.is_open else None


def with_move(build: Build, move: BuildMove, **changes: Any) -> Build:
    """Return a build with a new state of its move, and other changed fields."""
    return replace(build, parts=build.parts.having(MovePart(move)), **changes)


def held(build: Build, status: HeldStatus, **changes: Any) -> Build:
    """Return a build that its move has, with the status to show."""
    parts = build.parts.having(MovePart(last_move(build)))
    return replace(build, status="held", held_as=status, parts=parts, **changes)


def of_kernel(build: Build, status: Status, **changes: Any) -> Build:
    """Return a build that the kernel has again, in a status."""
    if build.held_as and last_move(build) is None:
        changes["parts"] = build.parts.without(MovePart)
    return replace(build, status=status, held_as="", **changes)


def has_lost_claim(placed: moves.MovePlaced) -> bool:
    """Return whether a move's order has no destination, because placement released the move's claim before
    the scheduler published the order.
    """
    return placed.chosen is None and placed.kind in (*KEPT, *BUILT)


def without_record(placed: moves.MovePlaced) -> moves.MovePlaced:
    """Return a move's order without its decision record and the build's request, which are not stored."""
    return replace(placed, booted=None, decision=replace(placed.decision, record=None))


def closed(move: BuildMove, end: moves.MoveEnd, reason: str, host: str, root: str, now: float) -> BuildMove:
    return replace(move, end=end, ended=now, cause=reason[:MAX_CAUSE], at_host=host, at_root=root)


def refused_move(placed: moves.MovePlaced, end: moves.MoveEnd, why: str, now: float) -> BuildMove:
    """Return the record of a move that was refused, with the given end and reason `why`."""
    host = placed.chosen.host if placed.chosen else ""
    move = BuildMove(placed=without_record(placed), phase="prepare", since=now, began=now, host=host)
    return closed(move, end, why, "", "", now)


def ended(move: BuildMove) -> moves.MoveEnded:
    """Return the message `MoveEnded` about an ended move; repeated calls return the same message."""
    assert move.end, f"move {move.id} is not over"
    return moves.MoveEnded(
        **_named_fields(move),
        end=move.end,
        host=move.at_host,
        root=move.at_root,
        reply_to=move.placed.reply_to,
        plan=move.placed.plan,
    )


def _named_fields(move: BuildMove) -> dict[str, Any]:
    fields = {"reason": move.cause, "phases": move.phases, "attempts": move.attempts}
    placed = {name: getattr(move.placed, name) for name in ("move", "build", "kind", "cell", "decision")}
    return placed | fields


def half_of(
    move: moves.MovePlaced | moves.HandoverProgress,
    half: Literal["leaving", "arriving"],
    outcome: HalfOutcome,
    **more: Any,
) -> moves.HandoverReported:
    """Return the message in which a cell reports its part of a move between cells to the scheduler: the
    source cell the part `leaving`, the destination `arriving`.
    """
    return moves.HandoverReported(
        move=move.move, build=move.build, cell=move.cell, half=half, outcome=outcome, **more
    )


def half_report(move: BuildMove) -> moves.HandoverReported:
    """Return the message in which this cell reports its part of a move between cells to the scheduler.
    Repeated calls return the same message.
    """
    outcome: HalfOutcome
    if move.half == "leaving":
        outcome = "ready" if move.phase == "away" else "deleted" if move.goal == "deleted" else "failed"
    else:
        outcome = "deleted" if move.end == "deleted" else "back" if move.silent else "arrived"
    assert move.half, f"move {move.id} stays in its cell"
    return half_of(
        move.placed,
        move.half,
        outcome,
        above=move.highest,
        steps=move.step,
        end=move.end or move.goal or "error",
        cause=move.cause,
        phases=move.phases if move.half == "arriving" else (),
        attempts=move.attempts,
    )


def end_messages(move: BuildMove) -> tuple[Message, ...]:
    """Return the messages that report a move's end: to all subscribers, unless another cell reports it, and
    from the destination of a move between cells to the scheduler.
    """
    emitted: tuple[Message, ...] = () if move.silent else (ended(move),)
    return (*emitted, half_report(move)) if move.half == "arriving" else emitted


def move_state(move: BuildMove) -> moves.MoveStands:
    return moves.MoveStands(
        **_named_fields(move),
        phase=move.shown,
        source=move.left,
        host=move.host,
        at=move.at_host,
        percent=move.percent,
        since=move.since,
        ended=move.ended,
        note=move.placed.note,
        in_cell=move.elsewhere,
    )


encode_move = parts.stored_encoder().encode
decode_move = parts.stored_decoder(BuildMove).decode
decode_placed = parts.stored_decoder(moves.MovePlaced).decode

"""The course of moves: has a build while it moves, is shelved, or is in another cell.

A build in a move gets all its events here (`step_of_move`). After a move the kernel has the build again, and
this course answers late messages about the move. An instance is shelved until it is unshelved or deleted. A
build that moved to another cell keeps its record, so that no late message builds it again.
"""

from typing import Any

from bus.messages import AgentReported, BuildDeleteRequested, Selection
from cell_conductor.extension import (
    AttemptLimits,
    Build,
    Course,
    CourseStands,
    Effects,
    HeldStatuses,
    Postponed,
    Step,
    Stepped,
    builds,
    events,
    is_stale,
    leftovers,
)
from features.moves.core import phases
from features.moves.core.beginning import (
    begin,
    end_of_refused,
    late_move_report,
    late_steering,
    postpone_reason,
)
from features.moves.core.handing_over import (
    arrives,
    event_of_moved,
    handover,
    handover_in_other_phase,
    not_going,
)
from features.moves.core.move_step import step_of_move
from features.moves.core.phases import (
    AT_SOURCE,
    BuildMove,
    MoveEndedBefore,
    MoveImpossible,
    MovePart,
    end_messages,
    last_move,
    move_in_progress,
    of_kernel,
)
from features.moves.core.repeated import conflict_of_orders
from features.moves.messages import HandoverProgress, MoveConflict, MovePlaced, MoveReported, MoveSteered

LATER = 5.0  # seconds before a retry if the build is in another move


class MovesCourse(Course):
    """The course of builds that move or are shelved: decides the events of these builds."""

    events = (MovePlaced, MoveReported, MoveSteered, HandoverProgress, MoveImpossible, MoveEndedBefore)
    state = MovePart
    name = "moves"
    statuses = HeldStatuses(waiting=("moving",), settled=("shelved", "moved"), ended=("moved",))

    def step(
        self, build: Build | None, event: Any, now: float, limits: AttemptLimits, kernel: Step
    ) -> tuple[Build | None, Effects] | None:
        if isinstance(event, MoveEndedBefore):
            refused = conflict_of_orders(event.move.placed, event.again, event.again.cell)
            return build, end_messages(event.move) if refused is None else (refused,)
        if build is None:
            return _unknown(event, now, limits)
        if (refused := _conflict(build, event)) is not None:
            return build, (refused,)
        if why := _postpone_reason(build, event):
            raise Postponed(LATER, why)
        if move_in_progress(build.parts) is None:
            stepped = _outside_moves(build, event, now, limits, kernel)
        elif isinstance(event, (*self.events, events.KernelEvent)):
            stepped = _in_move(build, event, now, limits, kernel)
        else:
            return None
        return (
            None if stepped is None else (stepped[0], (*stepped[1], *_releases_while_away(stepped[0], now)))
        )

    def stands(self, build: Build) -> CourseStands:
        last = last_move(build)
        operation = last.id if last is not None else None
        if (move := move_in_progress(build.parts)) is None:
            return CourseStands(operation=operation)
        return CourseStands(_guest_on(build, move), operation, None, phases.overdue_report)


def _guest_on(build: Build, move: BuildMove) -> Selection | None:
    """Return the source host of a build in a move if its guest is still there."""
    waits = move.phase in AT_SOURCE or (move.phase in ("build", "undo") and move.kind == "evacuate")
    return build.hosts[move.source] if move.was and waits else None


def _conflict(build: Build, event: Any) -> MoveConflict | None:
    """Return the refusal of the order of a repeated request with other content than the request of the
    build's last move; None for other events.
    """
    last = last_move(build)
    if not isinstance(event, MovePlaced) or last is None or last.id != event.move:
        return None
    return conflict_of_orders(last.placed, event, event.cell)


def _postpone_reason(build: Build, event: Any) -> str:
    match event:
        case MovePlaced():
            return postpone_reason(build, event)
        case MoveImpossible():
            return postpone_reason(build, event.placed)
        case HandoverProgress() if build.status in ("building", "swapping"):
            return f"its build is {build.status}"
        case _:
            return ""


def _unknown(event: Any, now: float, limits: AttemptLimits) -> tuple[Build | None, Effects]:
    match event:
        case MovePlaced() if event.out_of:
            return arrives(None, event, now, limits) or (None, end_of_refused(event, now))
        case MovePlaced():
            return None, end_of_refused(event, now)
        case HandoverProgress(say="leave"):
            return None, (not_going(event, "its cell does not know the build"),)
        case MoveImpossible():
            return None, end_of_refused(event.placed, now)
        case MoveSteered():
            return None, late_steering(None, event)
        case _:
            return None, ()


def _in_move(build: Build, event: Any, now: float, limits: AttemptLimits, kernel: Step) -> Stepped:
    move = phases.open_move(build)
    match event:
        case events.CleanedUp():
            after, effects = kernel(build, event, now, limits)
            assert after is not None
            return after, effects
        case HandoverProgress() if not move.leaves:
            return build, handover_in_other_phase(build, event)
        case MovePlaced() if event.move != move.id:
            return build, end_of_refused(event, now, f"the instance is in the move {move.id}")
        case _:
            return step_of_move(build, event, now, limits)


def _releases_while_away(build: Build | None, now: float) -> Effects:
    """Return the releases that are due although the build is in a move: while the other cell has the build,
    this cell waits for no answer of placement.
    """
    if build is None or build.held_as != "moved" or move_in_progress(build.parts) is None:
        return ()
    return leftovers.release_due(build, now, is_settled=True)


def _outside_moves(
    build: Build, event: Any, now: float, limits: AttemptLimits, kernel: Step
) -> tuple[Build | None, Effects] | None:
    """Return the result of an event of a build that is in no move; None to pass."""
    match event:
        case HandoverProgress():
            return handover(build, event, now, limits)
        case MovePlaced() if event.out_of:
            return arrives(build, event, now, limits) or (build, ())
        case MovePlaced():
            return begin(build, event, now, limits)
        case MoveImpossible():
            return begin(build, event.placed, now, limits, event.why)
        case MoveReported():
            return late_move_report(build, event)
        case MoveSteered():
            return build, late_steering(build, event)
        # An answer for a move that has ended: its end may not be published yet, because another conductor
        # applied the answer first, and may have crashed.
        case events.SwapAnswered() if move_in_progress(event.parts) is not None:
            return build, phases.repeated_move_end(build)
        case events.ReleaseAnswer(asked_in="held"):
            return build, phases.repeated_move_end(build)
        case AgentReported() if is_stale(build, event):
            return _late_report(build, event)
        case AgentReported(outcome="built" | "failed") if build.status == "active":
            return build, phases.repeated_move_end(build)
        case BuildDeleteRequested() if _repeats_end(build):
            after, effects = kernel(build, event, now, limits)
            assert after is not None
            return after, (*effects, *phases.repeated_move_end(after))
    match build.held_as:
        case "shelved":
            return _shelved(build, event, now, limits, kernel)
        case "moved":
            return event_of_moved(build, event)
        case _:
            return None


def _late_report(build: Build, report: AgentReported) -> Stepped | None:
    """Answer an agent's report about a guest of the last move, which has ended; None to pass."""
    move = last_move(build)
    if move is None:
        return None
    if move.goal and report.attempt >= move.first:
        return build, () if report.outcome == "progress" else phases.repeated_move_end(build)
    if build.status != "active" or any(left.attempt == report.attempt for left in build.leftovers):
        return None
    # the present guest, by its attempt number before a move that ended at the source
    is_present = (report.attempt, report.root) == (move.was, build.host.root)
    return (build, ()) if is_present else None


def _repeats_end(build: Build) -> bool:
    """Return whether a request to delete a build repeats the end of its last move, whose message may be
    lost.
    """
    move = last_move(build)
    if build.status == "deleted":
        return move is not None and move.end == "deleted"
    return move is not None and build.status in ("active", "deleting")


def _shelved(build: Build, event: Any, now: float, limits: AttemptLimits, kernel: Step) -> Stepped | None:
    match event:
        case AgentReported(outcome="destroyed"):
            return build, phases.repeated_move_end(build)
        case AgentReported(outcome="built" | "failed"):
            return build, (builds.destroy(build), *phases.repeated_move_end(build))
        case AgentReported(outcome="progress"):
            return build, (builds.destroy(build),)  # the guest is not needed any more
        case BuildDeleteRequested():  # no guest is left, so its allocations are released immediately
            after, _ = kernel(of_kernel(build, "active"), event, now, limits)
            assert after is not None
            return after, (builds.claim_or_release(after), *phases.repeated_move_end(after))
        case _:
            return None

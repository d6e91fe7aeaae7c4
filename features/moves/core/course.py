"""The course of moves: has a build while it moves, is shelved, or is in another cell.

A build in a move gets all its events here (`step_of_move`). After a move the kernel has the build again, and
this course answers late messages about the move. An instance is shelved until it is unshelved or deleted. A
build that moved to another cell keeps its record, so that no late message builds it again.
"""

from typing import Any, Literal

from msgspec.structs import replace

from bus import claims
from bus.messages import (
    AgentReported,
    BuildDeleteRequested,
    BuildEndRequested,
    BuildPlaced,
    BuildReshaped,
    Selection,
)
from bus.parts import PlacedParts
from bus.vocabulary import Contended, cause_of
from cell_conductor.extension import (
    AttemptLimits,
    Build,
    Course,
    Effects,
    Event,
    HeldStatuses,
    Leftover,
    Postponed,
    Step,
    Stepped,
    builds,
    events,
    holds_instead,
    is_stale,
    leftovers,
    position_of,
    reshaped,
    swap_result,
    with_allocations,
)
from features.moves.core import phases
from features.moves.core.phases import (
    ASKING,
    AT_SOURCE,
    BUILT,
    KEPT,
    BuildMove,
    MoveEndedBefore,
    MoveImpossible,
    MovePart,
    PhaseOutcome,
    closed,
    end_messages,
    ended,
    half_of,
    has_lost_claim,
    held,
    last_move,
    move_in_progress,
    of_kernel,
    refused_move,
    with_move,
    without_record,
)
from features.moves.core.repeated import conflict_of_orders
from features.moves.messages import (
    SHELVED,
    HandoverProgress,
    HandoverReported,
    MoveConflict,
    MoveEnd,
    MovePlaced,
    MoveProgress,
    MoveReported,
    MoveSteered,
)

# Section: begins moves, applies placement's answers to them, and answers late messages about ended moves.


UNKNOWN = "this cell does not know the build: the started move is undone"
DELETED = "the instance was deleted"
LOST = "placement released its claim before this cell received its order"


def postpone_reason(build: Build | None, placed: MovePlaced) -> str:
    """Return why a move that the scheduler placed must wait for the end of the build's current move, attempt
    or deletion; "" if it can begin.
    """
    last = last_move(build)
    if build is None or (last is not None and last.id == placed.move):
        return ""
    if has_lost_claim(placed) and build.status == "deleting":
        return "its build is being deleted"
    if last is not None and last.is_open and placed.kind not in ("shelve", "rebuild"):
        return f"its build is in the move {last.id}"
    return f"its build is {build.status}" if build.status in ("building", "swapping") else ""


def begin(build: Build, placed: MovePlaced, now: float, limits: AttemptLimits, why: str = "") -> Stepped:
    """Begin the move of a build that is in no other move. If `why` states that this cell cannot carry out the
    move, end it in error and undo its claim.
    """
    last = last_move(build)
    if last is not None and last.id == placed.move:
        return build, phases.ended_before(build)
    if has_lost_claim(placed) and _is_ready(build, placed):
        return build, end_of_refused(placed, now, LOST)
    if not begins(build, placed):
        return _refuse(build, placed, now, limits)
    if build.status == "deleting":
        build, _ = _begin(build, placed, now, limits, "")
        if move_in_progress(build.parts) is None:
            return build, ()
        return phases.deleting(build, None, now, limits, DELETED)
    # The message of the last move's end may be lost, so it is repeated.
    again = () if last is None else (ended(last),)
    build, emitted = _begin(build, placed, now, limits, why)
    return build, (*again, *emitted)


def begins(build: Build, placed: MovePlaced) -> bool:
    """Return whether an order begins a move of a build that this cell has and that is in no other move; if
    not, it is refused. The move of a build that is being deleted begins too, to delete the guest at the
    source with it.
    """
    last = last_move(build)
    if placed.out_of or (last is not None and last.id == placed.move):
        return False
    if build.status == "deleting":
        return placed.kind in KEPT and build.placed is not None
    return _is_ready(build, placed) and not has_lost_claim(placed)


def _is_ready(build: Build, placed: MovePlaced) -> bool:
    return build.held_as == "shelved" if placed.kind == "unshelve" else build.status == "active"


def _refuse(build: Build, placed: MovePlaced, now: float, limits: AttemptLimits) -> Stepped:
    """Record that a move was refused, because its build has ended or is shelved."""
    if placed.kind not in KEPT or build.placed is None:
        return _record_refusal(build, placed, now)
    # Placement has released the destination. The holder consumer keeps the source until the guest there is
    # destroyed.
    build = leftovers.record(build, Leftover(placed.attempt, build.at, now + limits.cleanup_timeout))
    return _record_refusal(build, placed, now)


def _record_refusal(build: Build, placed: MovePlaced, now: float) -> Stepped:
    end: MoveEnd = "deleted" if build.status in ("deleting", "deleted") else "error"
    why = DELETED if end == "deleted" else f"the instance is {build.shown}"
    move, last = refused_move(placed, end, why, now), last_move(build)
    if last is not None:
        move = replace(move, step=last.step, highest=max(last.highest, move.highest))
    build = with_move(build, move)
    return build, phases.repeated_move_end(build)


def new_move(build: Build, placed: MovePlaced, now: float) -> BuildMove:
    """Return a new move from the build's current host; its attempts get higher numbers than all before."""
    last, shelved = last_move(build), placed.kind == "unshelve"
    highest = max(build.attempt, placed.attempt, placed.above, last.highest if last is not None else 0)
    return BuildMove(
        placed=without_record(placed),
        phase="prepare",
        since=now,
        began=now,
        step=last.step if last is not None else 0,
        first=highest + 1,
        highest=highest,
        source=build.at,
        left="" if shelved else build.host.host,
        was=0 if shelved else build.attempt,
        before=build.new_spec,
        host=placed.chosen.host if placed.chosen is not None else "",
    )


def _begin(build: Build, placed: MovePlaced, now: float, limits: AttemptLimits, why: str) -> Stepped:
    build = phases.trimmed(build)
    move = new_move(build, placed, now)
    number = move.highest if placed.kind == "shelve" else move.first
    move = replace(move, highest=number)
    if placed.kind in ("shelve", "rebuild"):
        if why:
            build = held(with_move(build, replace(move, phase="send")), "moving")
            return phases.close(build, "error", why, now, "active")
        if placed.kind == "shelve":
            return phases.enter(with_move(build, move), "send", now, limits)
        build = with_move(build, move, attempt=number, new_spec=placed.spec, started=now)
        return phases.enter(build, "rebuild", now, limits)
    assert placed.chosen is not None, f"move {placed.move} is placed nowhere"
    build = with_move(
        build,
        move,
        added_hosts=(*build.added_hosts, placed.chosen, *placed.alternates),
        at=len(build.hosts),
        attempt=number,
        generation=placed.generation,
        new_spec=placed.spec,
        started=now,
    )
    if placed.kind in KEPT and placed.attempt != move.was:
        why = why or "the instance has changed: it has another attempt now"
    if why:
        return phases.way_back(build, "error", why, now, limits)
    return phases.enter(build, "build" if placed.kind in BUILT else "prepare", now, limits)


def end_of_refused(placed: MovePlaced, now: float, why: str = UNKNOWN) -> Effects:
    """Return the message that a move ended in error without beginning; `why` is the reason."""
    return (ended(refused_move(placed, "error", why, now)),)


def late_steering(build: Build | None, event: MoveSteered) -> Effects:
    last = last_move(build)
    if build is not None and last is not None and last.id == event.move:
        return phases.repeated_move_end(build)
    why = "the instance is in no such move"
    progress = MoveProgress(
        move=event.move, build=event.build, cell=event.cell, phase="", refused=why, reply_to=event.reply_to
    )
    return (progress,)


def undone_unknown(placed: MovePlaced) -> claims.ClaimRequested | claims.ReleaseRequested | None:
    """Return the request to placement that undoes the claim of a move if this cell does not know the build;
    None if moves of this type claim nothing.
    """
    if placed.kind == "unshelve":
        return claims.ReleaseRequested(
            consumer=placed.build, generation=placed.generation, retire=SHELVED, revivable=True
        )
    if placed.kind not in KEPT:
        return None
    holder_of_source = builds.holder_consumer(placed.build, placed.attempt)
    shared = claims.Choice(allocations=placed.shared)
    return builds.claim_of(placed.build, placed.generation, placed.spec, shared, take_over=holder_of_source)


def late_move_report(build: Build, report: MoveReported) -> Stepped:
    """Answer an agent's report that arrives after the end of the reported move. If the report is about a
    failed rebuild, record that the guest with the old image still runs.
    """
    move, emitted = last_move(build), stale_move_report(build, report)
    last = (report.move, report.step, report.attempt)
    same = move is not None and (move.id, move.step, build.attempt) == last
    failed = (report.phase, report.outcome, build.status) == ("rebuild", "failed", "active")
    if move is not None and same and failed:
        build = replace(build, attempt=move.was, new_spec=move.before)
    return build, emitted


def stale_move_report(build: Build, report: MoveReported) -> Effects:
    """Answer an agent's report about an ended move or phase: return the move's end again, and the order to
    destroy the guest if its build has ended or is shelved.
    """
    again: Effects = ()
    last = last_move(build)
    if last is not None and not last.is_open and report.move == last.id:
        if report.outcome == "progress":
            return ()
        again = phases.repeated_move_end(build)
    is_over = build.status in ("deleting", "deleted", "error") or build.held_as == "shelved"
    is_unneeded = is_over and report.attempt <= build.attempt
    left = any(
        leftover.attempt == report.attempt and not leftover.is_destroyed for leftover in build.leftovers
    )
    if report.outcome == "overdue" or not is_unneeded or left:
        return again
    return (builds.destroy_reported(build, report), *again)


def answered(build: Build, result: claims.ClaimResult | str, now: float, limits: AttemptLimits) -> Stepped:
    """Apply placement's answer to a move's claim of its next destination or of its source; an answer of type
    `str` is the reason why placement could not process the claim.
    """
    move = phases.open_move(build)
    if move.phase != "swap":
        return _taken_over(build, result, now, limits)
    left_behind = builds.destroy(build, above=move.was)
    build, at, refused, why = swap_result(build, result, now)
    if refused:
        move = replace(move, attempts=(*move.attempts, *refused))
        build = with_move(build, move)
    if why:
        return phases.way_back(build, "error", why, now, limits)
    if not at:
        return build, (phases.claim_or_release(build),)
    move = replace(move, highest=move.highest + 1)
    build = with_move(build, move, at=at, attempt=move.highest, started=now)
    return phases.enter(build, "build" if move.kind in BUILT else "prepare", now, limits, left_behind)


def _taken_over(build: Build, result: claims.ClaimResult | str, now: float, limits: AttemptLimits) -> Stepped:
    move = phases.open_move(build)
    match result:
        case claims.Claimed():
            return phases.returned(replace(build, generation=result.generation), now, limits)
        case claims.Held():
            return _held(build, result, now, limits)
        case claims.Refused(refusals=refusals):
            if not move.afresh and any(isinstance(refusal, claims.NothingHeld) for refusal in refusals):
                build = with_move(build, replace(move, afresh=True))
                return build, (phases.claim_or_release(build),)
            return phases.returned(build, now, limits, "; ".join(map(str, refusals)) or "it was refused")
        case claims.Retired():
            return phases.returned(build, now, limits, f"its claim has ended ({result.why})")
        case Contended():
            return build, (phases.claim_or_release(build),)
        case str() as why:
            return phases.returned(build, now, limits, f"placement refused to judge the claim ({why})")


def _held(build: Build, held: claims.Held, now: float, limits: AttemptLimits) -> Stepped:
    move = phases.open_move(build)
    build = replace(build, generation=held.generation if held.allocations else None)
    if holds_instead(build, build.hosts[move.source], held):
        return phases.returned(with_allocations(build, move.source, held.allocations), now, limits)
    position = position_of(build, held)
    # A claim of the next destination, sent before the way back began, has succeeded.
    if position is not None and position > build.at:
        number = move.highest + 1
        build = with_move(build, replace(move, highest=number), at=position, attempt=number)
    return build, (phases.claim_or_release(build),)


def released(build: Build, result: claims.ReleaseResult, now: float, limits: AttemptLimits) -> Stepped:
    """End a shelve, a failed unshelve or a failed arrival from another cell, after placement released the
    build's allocations. After a conflict, request the release again.
    """
    move = phases.open_move(build)
    problem = ""
    match result:
        case claims.Held():  # request the release again, with the present generation
            if move.kind == "shelve" and result.allocations not in ({}, build.host.choice.allocations):
                # the next move of the build has been claimed; its holder consumer has the resources of the
                # destroyed guest
                build = leftovers.record(build, Leftover(move.was, build.at, now, is_destroyed=True))
            build = replace(build, generation=result.generation if result.allocations else None)
            return build, (phases.claim_or_release(build),)
        case Contended():
            return build, (phases.claim_or_release(build),)
        case claims.Retired(revivable=True):  # an earlier request has released the allocations
            pass
        case claims.OutsideCell(why=why) | claims.Retired(why=why):
            problem = f"placement does not release its allocations: {why}"
    if not isinstance(result, claims.OutsideCell):
        build = replace(build, generation=None)
    cause = "; ".join(filter(None, (move.cause, problem)))
    if move.half == "arriving":
        build = with_move(build, replace(move, silent=True))
        return phases.close(build, move.goal or "error", cause, now, "moved")
    if move.kind == "unshelve":
        build = replace(build, new_spec=move.before)
    return phases.close(build, move.goal or ("error" if problem else "done"), cause, now, "shelved")


# The source cell's part of a move between cells: stop the guest, send the build away, await the result.
#
#     leave ─→ [send →] away ── done, deleted ─→ the build has left this cell, and its guest here is destroyed
#                 │       └──── back ──────────→ the build is here again, [resume →] in its former state
#                 └─ failed, aborted, deleted → recall ── back, deleted ─→ as after away
#
# Phases in brackets occur only in some moves. Until the phase `away` this cell decides about the build and
# carries out its deletion; from `away` on, the other cell does. The scheduler controls each step
# (`HandoverProgress`), because no cell can claim or release resources in another cell.
#
# The destination cell stores the build, and its move continues as within a cell. No guest runs there yet; the
# guest in the source cell is stopped or dead. If the move fails, the build leaves the destination cell
# without resources, and the scheduler claims its former resources in the source cell again.


CHANGED = "the instance has changed: it has another attempt now"

Goal = Literal["error", "aborted", "deleted"]


def handover(build: Build, order: HandoverProgress, now: float, limits: AttemptLimits) -> Stepped:
    """Begin the move of a build to another cell as ordered, or refuse it. The build must be in no move."""
    last = last_move(build)
    if last is not None and last.id == order.move:
        deleted = build.replies if build.status == "deleted" else ()
        return build, (
            *phases.ended_before(build),
            *(builds.deleted(build, reply_to) for reply_to in deleted),
        )
    if order.say != "leave":
        return build, ()
    if build.status in ("deleting", "deleted"):
        return _deleted_before(build, order, now, limits)
    if build.shown != ("shelved" if order.kind == "unshelve" else "active"):
        return build, (not_going(order, f"the instance is {build.shown}"),)
    move = _leaving(build, order, now)
    build = with_move(build, move)
    if order.kind in KEPT and order.attempt != move.was:
        return recalled(build, "error", CHANGED, now, limits)
    return phases.enter(build, "send" if order.kind in ("migrate", "resize") else "away", now, limits)


def handover_in_other_phase(build: Build, order: HandoverProgress) -> Effects:
    """Answer an order to leave the cell that arrives during a move: if it names this move, return the
    unanswered messages again; if not, refuse it.
    """
    move = phases.open_move(build).id
    if order.move == move:
        return phases.waited_for(build)
    return (not_going(order, f"the instance is in the move {move}"),) if order.say == "leave" else ()


def _leaving(build: Build, order: HandoverProgress, now: float) -> BuildMove:
    names = ("move", "build", "kind", "cell", "attempt", "spec", "decision", "reply_to")
    placed = MovePlaced(**{name: getattr(order, name) for name in names}, generation=None)
    move = new_move(build, placed, now)
    return replace(move, phase="send", host=order.host, half="leaving", to_cell=order.to_cell)


def _deleted_before(build: Build, order: HandoverProgress, now: float, limits: AttemptLimits) -> Stepped:
    """Refuse to move a deleted build to another cell; its resources are held until its guest is destroyed."""
    move = replace(_leaving(build, order, now), goal="deleted", phase="recall")
    build = with_move(build, closed(move, "deleted", DELETED, "", "", now))
    if order.kind in KEPT and build.placed is not None:
        build = leftovers.record(build, Leftover(order.attempt, build.at, now + limits.cleanup_timeout))
    return build, (not_going(order, DELETED, "deleted"), *phases.repeated_move_end(build))


def not_going(
    order: HandoverProgress, why: str, outcome: Literal["failed", "deleted"] = "failed"
) -> HandoverReported:
    return half_of(order, "leaving", outcome, cause=why)


def step_of_leaving(build: Build, event: Event, now: float, limits: AttemptLimits) -> Stepped:
    move = phases.open_move(build)
    match event:
        case HandoverProgress() if event.move != move.id:
            return build, handover_in_other_phase(build, event)
        case HandoverProgress(say="back"):
            return _back(build, event, now, limits)
        case HandoverProgress(say="done") if move.phase == "away":
            return _left_cell(build, now, limits, "moved")
        case HandoverProgress(say="deleted") if move.phase in ("away", "recall"):
            return _left_cell(build, now, limits, "deleted")
        case HandoverProgress():
            return build, phases.waited_for(build)
        case BuildDeleteRequested():
            return _delete(build, event, now, limits)
        case AgentReported() if (
            event.outcome != "destroyed"
        ):  # only guests left behind are destroyed, not the guest that is leaving
            return build, leftovers.destroy_all(build, event.attempt)
        case _:
            return build, ()


def recalled(build: Build, goal: Goal, cause: str, now: float, limits: AttemptLimits) -> Stepped:
    """Cancel a build's move to another cell, and ask the scheduler to claim its resources in this cell again.
    `goal` is how the move ends.
    """
    build = with_move(build, replace(phases.open_move(build), goal=goal, cause=cause))
    return phases.enter(build, "recall", now, limits)


def _delete(build: Build, event: BuildDeleteRequested, now: float, limits: AttemptLimits) -> Stepped:
    move = phases.open_move(build)
    if move.phase == "away":
        return build, (deleted_elsewhere(move, event),)
    if event.reply_to not in build.replies:
        build = replace(build, replies=(*build.replies, event.reply_to))
    if move.goal == "deleted":
        return build, phases.waited_for(build)
    if move.phase == "send":
        build = phases.end_phase(build, "given up", DELETED, now)
    return recalled(build, "deleted", DELETED, now, limits)


def deleted_elsewhere(move: BuildMove, event: BuildDeleteRequested) -> HandoverReported:
    """Return the report to the scheduler that this cell was asked to delete a build which is now in another
    cell; the scheduler forwards it there.
    """
    return half_of(move.placed, move.half or "leaving", "delete", reply_to=event.reply_to)


def _left_cell(
    build: Build, now: float, limits: AttemptLimits, status: Literal["moved", "deleted"]
) -> Stepped:
    """End a move in the source cell after the build arrived in another cell or was deleted there; destroy its
    guests in the source cell.
    """
    move = phases.open_move(build)
    if move.source_is_held:
        build = phases.source_left(build, now, limits)
    replies = build.replies if status == "deleted" else ()
    build = with_move(build, replace(move, silent=move.phase == "away"), generation=None)
    build, emitted = phases.close(
        build, "deleted" if status == "deleted" else "done", move.cause, now, status
    )
    return build, (*emitted, *(builds.deleted(build, reply_to) for reply_to in replies))


def _back(build: Build, progress: HandoverProgress, now: float, limits: AttemptLimits) -> Stepped:
    """Continue a build in its source cell after its move to another cell failed, with its former allocations
    if the scheduler claimed them again.
    """
    move = phases.open_move(build)
    deleted = move.goal == "deleted"
    move = replace(
        move,
        goal="deleted" if deleted else progress.end if progress.end in ("reverted", "aborted") else "error",
        cause=progress.cause,
        highest=max(move.highest, progress.above),
        step=max(move.step, progress.steps),
        phases=(*move.phases, *progress.phases),
        attempts=progress.attempts,
    )
    build = held(with_move(build, move), "moving", generation=progress.generation)
    if deleted:
        build, emitted = phases.close(build, "deleted", DELETED, now, "deleting", builds.destroy(build))
        return replace(build, deadline=now + limits.delete_timeout), emitted
    if move.kind == "unshelve":
        return phases.close(build, move.goal or "error", move.cause, now, "shelved")
    return phases.returned(build, now, limits, progress.problem)


def arrives(build: Build | None, placed: MovePlaced, now: float, limits: AttemptLimits) -> Stepped | None:
    """Return a build that arrives from another cell, with messages; None if the order lacks the build's
    description or its destination. `build`: this cell's earlier record of the build.
    """
    last = last_move(build)
    if build is not None and last is not None and last.id == placed.move:
        return build, phases.ended_before(build)
    if placed.booted is None or placed.chosen is None:
        return None
    if build is None:
        return _begin_handover(_new(placed), placed, 0, now, limits)
    if build.status == "deleted" and build.placed is None:
        made = replace(_new(placed), version=build.version, replies=build.replies)
        taken, _ = _begin_handover(made, placed, 0, now, limits)
        return phases.deleting(taken, None, now, limits, DELETED)
    if build.held_as != "moved":
        cause = f"the instance is {build.shown} there already"
        return build, (half_of(placed, "arriving", "back", above=build.attempt, cause=cause),)
    build = phases.trimmed(build)
    at = len(build.hosts)
    build = replace(build, added_hosts=(*build.added_hosts, placed.chosen, *placed.alternates))
    return _begin_handover(build, placed, at, now, limits)


def _new(placed: MovePlaced) -> Build:
    boot = placed.booted
    assert boot is not None and placed.chosen is not None
    as_placed = BuildPlaced(
        build=placed.build,
        request=boot.request,
        cell=placed.cell,
        chosen=placed.chosen,
        generation=placed.generation or 0,
        alternates=placed.alternates,
        spec=placed.spec,
        decision=boot.decision,
        reply_to=boot.reply_to,
        parts=PlacedParts(*[part for part in boot.parts if not part.replaced]),
    )
    return Build(id=placed.build, cell=placed.cell, status="active", placed=as_placed, end="active")


def _begin_handover(build: Build, placed: MovePlaced, at: int, now: float, limits: AttemptLimits) -> Stepped:
    move = replace(new_move(build, placed, now), was=0, before=None, host="", half="arriving")
    number, step = move.first, max(placed.steps, move.step)
    move = replace(move, step=step, highest=number, source=at, left=f"cell {placed.out_of}")
    build = with_move(build, move, at=at, attempt=number, new_spec=placed.spec, started=now)
    build = replace(build, generation=placed.generation)
    return phases.enter(build, "build" if placed.kind in BUILT else "prepare", now, limits)


def event_of_moved(build: Build, event: Event) -> Stepped | None:
    """Answer an event of a build that is in another cell; None to pass."""
    move = last_move(build)
    assert move is not None, f"{build.id} has moved, by no move"
    match event:
        case BuildDeleteRequested():
            return build, (deleted_elsewhere(move, event),)
        case AgentReported(outcome="built" | "failed" | "progress"):  # the guest is not needed any more
            left = next((leftover for leftover in build.leftovers if leftover.attempt == build.attempt), None)
            return build, (builds.destroy(build) if left is None else leftovers.destroy(build, left),)
        case _:
            return None


# Section: applies one event to a build in a move, as a pure function: (build, event) → (build, messages).
#
# `course.py` passes the events of builds in a move to this module. A report from the source host never causes
# the destruction of the guest there; only the move's last step or a deletion of the build does. `phases.py`
# defines the phases and their order.


def step_of_move(build: Build, event: Event, now: float, limits: AttemptLimits) -> Stepped:
    move = phases.open_move(build)
    match event:
        case BuildPlaced() | BuildEndRequested():
            return build, builds.repeated_end(build)
        case events.Stalled():
            again = (phases.overdue_report(build),) if move.phase in ASKING else phases.waited_for(build)
            return build, (*again, *leftovers.destroy_all(build, roots=event.roots))
        case MoveReported() if event.move != move.id:
            return build, stale_move_report(build, event)
        case MoveReported():
            return _phase_reported(build, event, now, limits)
        case MoveSteered():
            return steered(build, event, now, limits)
        case _ if move.leaves:
            return step_of_leaving(build, event, now, limits)
        case MovePlaced() | MoveImpossible():  # this move's order, repeated
            return build, phases.waited_for(build)
        case BuildReshaped():
            return reshaped(build, event, former=(move.source,)), ()
        case BuildDeleteRequested():
            return phases.deleting(build, event.reply_to, now, limits, DELETED)
        case AgentReported():
            return _agent_reported(build, event, now, limits)
        case events.SwapAnswered(attempt=build.attempt) if _asked_now(move, event):
            return answered(build, event.result, now, limits)
        case events.ReleaseAnswer(asked_in="held") if move.phase == "release":
            return released(build, event.result, now, limits)
        case _:
            return build, ()


def _asked_now(move: BuildMove, answer: events.SwapAnswered) -> bool:
    """Return whether placement answered the claim that the move waits for, and not an earlier one."""
    asked = move_in_progress(answer.parts)
    return asked is not None and asked.asks == move.asks


def _phase_reported(build: Build, report: MoveReported, now: float, limits: AttemptLimits) -> Stepped:
    move = phases.open_move(build)
    if report.outcome == "overdue" and not report.removed:
        return _overdue(build, now, limits)
    if (report.phase, report.step) != (move.phase, move.step):
        return build, () if report.outcome == "progress" else phases.waited_for(build)
    cause = report.cause or "failed without giving a cause"
    failed = phases.end_phase(build, "failed", cause, now)
    match report.outcome, move.phase:
        case "progress", _:
            build = replace(build, deadline=now + limits.build_timeout)
            if report.percent == move.percent:
                return build, ()
            build = with_move(build, replace(move, percent=report.percent))
            return build, (phases.move_progress(build),)
        case "done", _:
            return _done(build, now, limits)
        case "overdue", _:
            return _unanswered(build, cause, now, limits)
        case _, "prepare":
            return phases.failed_there(build, "failed", cause, now, limits, report)
        case _, "send":
            return _not_sent(failed, f"{move.left} could not send it: {cause}", now, limits)
        case _, "start":
            return _not_started(build, cause, now, limits, left=report.leftover)
        case _, "rebuild":  # the guest with the old image still runs
            build = replace(failed, attempt=move.was, new_spec=move.before)
            why = f"it could not be rebuilt, and is as it was: {cause}"
            return phases.close(build, "error", why, now, "active")
        case _:
            return resumed(failed, cause, now)


def _done(build: Build, now: float, limits: AttemptLimits) -> Stepped:
    move = phases.open_move(build)
    build = phases.end_phase(build, "done", "", now)
    match move.phase:
        case "prepare":
            return phases.enter(build, "start" if move.half == "arriving" else "send", now, limits)
        case "send" if move.leaves:
            return phases.enter(build, "away", now, limits)
        case "send" if move.kind == "shelve":
            return phases.enter(build, "destroy", now, limits)
        case "send":
            return phases.enter(build, "start", now, limits)
        case "start" if move.placed.verify and move.kind in ("migrate", "resize"):
            return phases.enter(phases.tried(build, "built", "", now), "verify", now, limits)
        case "resume":
            return resumed(build, "", now)
        case _:  # the phases start and rebuild
            return phases.arrived(phases.tried(build, "built", "", now), now, limits)


def _not_started(build: Build, cause: str, now: float, limits: AttemptLimits, left: bool) -> Stepped:
    failed = builds.host_failed(build, cause)
    build = phases.tried(phases.end_phase(build, "failed", cause, now), "failed", cause, now)
    if left:
        build = leftovers.add(build, now, limits.cleanup_timeout, above=phases.open_move(build).was)
    return phases.way_back(build, "error", "it could not be started", now, limits, failed)


def _not_sent(build: Build, why: str, now: float, limits: AttemptLimits) -> Stepped:
    move = phases.open_move(build)
    if move.leaves:
        return recalled(build, "error", why, now, limits)
    if move.kind != "shelve":  # a guest whose shelve failed is started again
        build = leftovers.add(build, now, limits.cleanup_timeout, above=move.was)
    return phases.way_back(build, "error", why, now, limits)


def _agent_reported(build: Build, report: AgentReported, now: float, limits: AttemptLimits) -> Stepped:
    move = phases.open_move(build)
    mine = report.attempt == build.attempt
    if report.outcome == "destroyed":
        return _destroyed(build, report.attempt, now, limits)
    if mine and move.phase == "build":
        match report.outcome:
            case "built":
                build = phases.tried(phases.end_phase(build, "done", "", now), "built", "", now)
                return phases.arrived(build, now, limits)
            case "failed":
                cause = report.cause or "failed without giving a cause"
                return phases.failed_there(build, "failed", cause, now, limits, report)
            case "progress":
                return replace(build, deadline=now + limits.build_timeout), ()
        return build, ()
    if report.attempt == move.was or report.attempt > build.attempt:
        return build, ()
    again = () if report.outcome == "progress" else phases.waited_for(build)
    return build, again if move.phase == "undo" else (*leftovers.destroy_all(build, report.attempt), *again)


def _destroyed(build: Build, attempt: int, now: float, limits: AttemptLimits) -> Stepped:
    cause = "destroyed on the host, not by this conductor"
    move, mine = phases.open_move(build), attempt == build.attempt
    match move.phase:
        case "undo":
            return undone(build, now, limits)
        case "destroy" if mine:
            return phases.enter(phases.end_phase(build, "done", "", now), "release", now, limits)
        case "prepare" | "build" if mine:
            return phases.failed_there(build, "failed", cause, now, limits)
        case "start" if mine:
            return _not_started(build, cause, now, limits, left=False)
        case "verify":
            return build, ()
        case _:  # this event may be redelivered: repeat its messages
            awaited = move.phase in ASKING or move.first <= attempt < build.attempt
            return build, phases.waited_for(build) if awaited else ()


def _overdue(build: Build, now: float, limits: AttemptLimits) -> Stepped:
    move = phases.open_move(build)
    if move.phase in ASKING or move.phase == "recall":
        return build, phases.waited_for(build)
    if not build.deadline or now < build.deadline:
        return build, ()
    return _unanswered(build, f"no result within {build.deadline - move.began:g} s", now, limits)


def _unanswered(build: Build, cause: str, now: float, limits: AttemptLimits) -> Stepped:
    """End a phase of a move whose agent did not answer in time, or was removed."""
    move = phases.open_move(build)
    late = phases.end_phase(build, "timed out", cause, now)
    match move.phase:
        case "away":
            return replace(build, deadline=now + phases.AWAY_SECONDS), phases.waited_for(build)
        case "prepare" | "build":
            return phases.failed_there(build, "timed out", cause, now, limits)
        case "send":
            return _not_sent(late, f"{move.left} did not send it: {cause}", now, limits)
        case "start":  # the order is still queued, so the guest may run: the build stays there
            failed = builds.host_failed(build, cause)
            build = phases.tried(late, "timed out", cause, now)
            why = f"{move.host} did not report that the guest runs; it runs there, or will run: {cause}"
            build, emitted = phases.arrived(build, now, limits, "error", why)
            return build, (failed, *emitted)
        case "rebuild":  # the order is still queued, so the guest may be rebuilt later
            return phases.close(late, "error", f"it may yet be rebuilt: {cause}", now, "active")
        case "resume":
            return resumed(late, cause, now)
        case "verify":
            return phases.arrived(phases.end_phase(build, "done", "too late to revert", now), now, limits)
        case "undo":
            return undoing(build, now, limits)
        case _:  # the phase destroy: a holder consumer keeps the resources until the guest is destroyed
            build = leftovers.add(late, now, limits.cleanup_timeout)
            return phases.enter(build, "release", now, limits)


AS_ASKED = {"revert": "reverted", "abort": "aborted"}
WHY_NOT = {
    "confirm": "it does not wait to be confirmed",
    "revert": "it does not wait to be reverted",
    "abort": "it is too late for that",
    "force": "only the copying of a live migration ends sooner",
}


def steered(build: Build, event: MoveSteered, now: float, limits: AttemptLimits) -> Stepped:
    """Apply an operator's request to confirm, revert, abort or force a move, or refuse it with a reason."""
    move = phases.open_move(build)
    if event.move != move.id:
        return _refused(build, event, f"the instance is in another move, {move.id}")
    if move.goal and AS_ASKED.get(event.to) == move.goal:  # a repeated request
        return build, (phases.move_progress(build, reply_to=event.reply_to), *phases.waited_for(build))
    if move.phase == "away":
        return _refused(build, event, "it has left this cell: steer it in its new cell")
    if move.goal:
        return _refused(build, event, "it is being reverted already")
    match event.to, move.phase:
        case "confirm", "verify":
            return phases.arrived(phases.end_phase(build, "done", "confirmed", now), now, limits)
        case "revert", "verify":
            build = phases.end_phase(build, "given up", "reverted", now)
            build = leftovers.add(build, now, limits.cleanup_timeout, above=move.was)
            build = with_move(build, replace(phases.open_move(build), may_run=True))
            return phases.way_back(build, "reverted", "", now, limits)
        case "abort", "send" if move.leaves:
            return recalled(phases.end_phase(build, "given up", "aborted", now), "aborted", "", now, limits)
        case "abort", "prepare" | "send" | "build" | "swap" | "undo":
            if move.phase != "swap":
                build = phases.end_phase(build, "given up", "aborted", now)
            if move.phase in ("prepare", "build") or (move.phase == "send" and move.kind != "shelve"):
                build = leftovers.add(build, now, limits.cleanup_timeout, above=move.was)
            return phases.way_back(build, "aborted", "", now, limits)
        case "force", "send" if move.kind == "live":
            build = with_move(build, replace(move, forced=True))
            return phases.enter(build, "send", now, limits)
    return _refused(build, event, f"{WHY_NOT[event.to]}: {move.phase}")


def _refused(build: Build, event: MoveSteered, why: str) -> Stepped:
    return build, (replace(phases.move_progress(build, why, reply_to=event.reply_to), move=event.move),)


def undoing(build: Build, now: float, limits: AttemptLimits) -> Stepped:
    """Continue to undo a move whose agents do not answer: repeat the orders to destroy guests at the
    destinations until a time limit, then continue without an answer.
    """
    move = phases.open_move(build)
    waits = phases.pending(build)
    if move.goal and move.may_run and any(now < left.until for left in waits):
        cause = f"{', '.join(build.hosts[left.at].host for left in waits)}: no reply; the order is repeated"
        build = replace(build, deadline=now + limits.delete_timeout)
        return build, (phases.move_progress(build, refused=cause), *phases.waited_for(build))
    return _without_guest(build, "timed out", "no answer", now, limits)


def undone(build: Build, now: float, limits: AttemptLimits) -> Stepped:
    return (build, ()) if phases.pending(build) else _without_guest(build, "done", "", now, limits)


def _without_guest(
    build: Build, outcome: PhaseOutcome, why: str, now: float, limits: AttemptLimits
) -> Stepped:
    after = phases.phase_without_guest(build)
    return phases.enter(phases.end_phase(build, outcome, why, now), after, now, limits)


def resumed(build: Build, problem: str, now: float) -> Stepped:
    move = phases.open_move(build)
    assert move.goal
    if problem:
        cause = cause_of(f"{move.cause}; it did not go on at {move.left}: {problem}")
        return phases.close(build, "error", cause, now, "active")
    return phases.close(build, move.goal, move.cause, now, "active")


LATER = 5.0  # seconds before a retry if the build is in another move


class MovesCourse(Course):
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

    def guest_on(self, build: Build) -> Selection | None:
        """Return the source host of a build in a move if its guest is still there."""
        move = move_in_progress(build.parts)
        if move is None or not move.was:
            return None
        waits = move.phase in AT_SOURCE or (move.phase in ("build", "undo") and move.kind == "evacuate")
        return build.hosts[move.source] if waits else None

    def operation(self, build: Build) -> str | None:
        move = last_move(build)
        return move.id if move is not None else None

    def time_limits(self, build: Build) -> tuple[float, ...] | None:
        return None if move_in_progress(build.parts) is not None else ()

    def overdue_reports(self, build: Build) -> Effects:
        return (phases.overdue_report(build),) if move_in_progress(build.parts) is not None else ()


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

"""The half of a move between cells in the source cell: stops the guest, releases the build, awaits the
result.

    leave ─→ [send →] away ── done, deleted ─→ what was held here is destroyed; the build left this cell
                │       └──── back ──────────→ the build is ours again, [resume →] as before
                └─ failed, aborted, deleted → recall ── back, deleted ─→ the same

Until the phase `away` the build belongs to this cell, and a delete wins here. From then on it belongs to the
other cell. The scheduler decides what happens (`HandoverProgress`): resources in another cell cannot be
claimed or released from here.
"""

from typing import Literal

from msgspec.structs import replace

from bus.messages import AgentReported, BuildDeleteRequested, BuildPlaced
from bus.moves import HandoverProgress, HandoverReported, MovePlaced, MoveReported, MoveSteered
from cell_conductor.core import build as say
from cell_conductor.core import leftovers
from cell_conductor.core.build import Build, Effects, Leftover
from cell_conductor.core.events import AttemptLimits, CleanedUp, Event, Stalled
from cell_conductor.core.move import KEPT, BuildMove, closed
from cell_conductor.core.phases import (
    AWAY_SECONDS,
    Stepped,
    close,
    enter,
    move_progress,
    open_move,
    over,
    repeated_move_end,
    returned,
    source_left,
    waited_for,
)

UNKNOWN = "its cell does not know the build"
CHANGED = "the instance was changed meanwhile: it is another attempt by now"
DELETED = "the instance was deleted"
LET_GO = "it has left this cell: it is steered where it goes to"

Goal = Literal["error", "aborted", "deleted"]


def handover_of_unknown(told: HandoverProgress) -> Effects:
    return (_not_going(told, UNKNOWN),) if told.say == "leave" else ()


def handover(build: Build, told: HandoverProgress, now: float, limits: AttemptLimits) -> Stepped:
    """Handle an order for a build that is in no move."""
    if build.move is not None and build.move.id == told.move:
        return build, _heard_before(build)
    if told.say != "leave":
        return build, ()
    if build.status in ("deleting", "deleted"):
        return _deleted_before(build, told, now, limits)
    if build.status != ("shelved" if told.kind == "unshelve" else "active"):
        return build, (_not_going(told, f"the instance is {build.status}"),)
    move = _leaving(build, told, now)
    build = replace(build, move=move)
    if told.kind in KEPT and told.attempt != move.was:
        return _recalled(build, "error", CHANGED, now, limits)
    return enter(build, "send" if told.kind in ("migrate", "resize") else "away", now, limits)


def _heard_before(build: Build) -> Effects:
    """Return the messages that the order led to before."""
    own = (say.destroy(build),) if build.status == "deleting" else ()
    deleted = build.replies if build.status == "deleted" else ()
    return (*own, *repeated_move_end(build), *(say.deleted(build, reply_to) for reply_to in deleted))


def handover_in_other_phase(build: Build, told: HandoverProgress) -> Effects:
    """Answer an order for a build that does not leave any more: on its way back, or in another move."""
    if told.move == open_move(build).id:
        return waited_for(build)
    return in_another_move(build, told)


def in_another_move(build: Build, told: HandoverProgress) -> Effects:
    if told.say != "leave":
        return ()
    return (_not_going(told, f"the instance is in the move {open_move(build).id}"),)


def _leaving(build: Build, told: HandoverProgress, now: float) -> BuildMove:
    last = build.move
    highest = max(build.attempt, told.attempt, last.highest if last is not None else 0)
    shelved = told.kind == "unshelve"
    return BuildMove(
        placed=MovePlaced(
            move=told.move,
            build=told.build,
            kind=told.kind,
            cell=told.cell,
            attempt=told.attempt,
            generation=None,
            spec=told.spec,
            decision=replace(told.decision, record=None),
            reply_to=told.reply_to,
        ),
        phase="send",
        since=now,
        began=now,
        step=last.step if last is not None else 0,
        first=highest + 1,
        highest=highest,
        source=build.at,
        left="" if shelved else build.host.host,
        was=0 if shelved else build.attempt,
        before=build.became,
        host=told.host,
        half="leaving",
        to_cell=told.to_cell,
    )


def _deleted_before(build: Build, told: HandoverProgress, now: float, limits: AttemptLimits) -> Stepped:
    """Release the holder's resources here when its guest is destroyed."""
    move = replace(_leaving(build, told, now), goal="deleted", phase="recall")
    build = replace(build, move=closed(move, "deleted", DELETED, "", "", now))
    if told.kind in KEPT and build.placed is not None:
        left = Leftover(told.attempt, build.at, now + limits.cleanup_timeout)
        build = leftovers.with_leftover(build, left)
    return build, (_not_going(told, DELETED, "deleted"), *repeated_move_end(build))


def _not_going(
    told: HandoverProgress, why: str, outcome: Literal["failed", "deleted"] = "failed"
) -> HandoverReported:
    return HandoverReported(
        move=told.move, build=told.build, cell=told.cell, half="leaving", outcome=outcome, cause=why
    )


def step_of_leaving(build: Build, event: Event, now: float, limits: AttemptLimits) -> Stepped:
    move = open_move(build)
    match event:
        case HandoverProgress() if event.move != move.id:
            return build, in_another_move(build, event)
        case HandoverProgress():
            return _handover_received(build, event, now, limits)
        case BuildPlaced():
            return build, say.repeated_end(build)
        case CleanedUp():
            return leftovers.leftover_released(build, event), ()
        case Stalled():
            return build, waited_for(build)
        case BuildDeleteRequested():
            return _delete(build, event, now, limits)
        case MoveSteered():
            return _steered(build, event, now, limits)
        case MoveReported(move=move.id):
            return _reported(build, event, now, limits)
        case AgentReported():
            return build, _left_behind(build, event)
        case _:
            return build, ()


def _reported(build: Build, report: MoveReported, now: float, limits: AttemptLimits) -> Stepped:
    move = open_move(build)
    if report.outcome == "overdue":
        return _overdue(build, now, limits)
    if (report.phase, report.step) != (move.phase, move.step):
        return build, () if report.outcome == "progress" else waited_for(build)
    match report.outcome:
        case "progress":
            heard = replace(build, deadline=now + limits.build_timeout)
            heard = replace(heard, move=replace(move, percent=report.percent))
            return heard, () if report.percent == move.percent else (move_progress(heard),)
        case "done":
            return enter(over(build, "done", "", now), "away", now, limits)
        case _:
            cause = report.cause or "failed without giving a cause"
            build = over(build, "failed", cause, now)
            return _recalled(build, "error", f"{move.left} could not send it: {cause}", now, limits)


def _overdue(build: Build, now: float, limits: AttemptLimits) -> Stepped:
    move = open_move(build)
    if move.phase == "recall":
        return build, waited_for(build)
    if now < build.deadline:
        return build, ()
    if move.phase == "away":
        return replace(build, deadline=now + AWAY_SECONDS), waited_for(build)
    cause = f"no result within {build.deadline - move.began:g} s"
    build = over(build, "timed out", cause, now)
    return _recalled(build, "error", f"{move.left} did not send it: {cause}", now, limits)


def _left_behind(build: Build, report: AgentReported) -> Effects:
    """Return orders for leftovers of earlier attempts; the guest that leaves must not be destroyed yet."""
    if report.outcome == "destroyed":
        return ()
    return tuple(
        say.destroy_left(build, left)
        for left in build.leftovers
        if left.attempt == report.attempt and not left.gone
    )


def _recalled(build: Build, goal: Goal, cause: str, now: float, limits: AttemptLimits) -> Stepped:
    """Cancel the departure. The build's resources are in the other cell, and the scheduler's to change."""
    build = replace(build, move=replace(open_move(build), goal=goal, cause=cause))
    return enter(build, "recall", now, limits)


def _steered(build: Build, event: MoveSteered, now: float, limits: AttemptLimits) -> Stepped:
    move = open_move(build)
    if event.move == move.id and event.to == "abort":
        if move.phase == "send":
            return _recalled(over(build, "given up", "aborted", now), "aborted", "", now, limits)
        if move.goal == "aborted":  # asked before
            return build, (move_progress(build, reply_to=event.reply_to), *waited_for(build))
    why = LET_GO if move.phase == "away" else "it is on its way back already"
    if event.move != move.id:
        why = f"the instance is in another move, {move.id}"
    elif move.phase == "send":
        why = f"it does not wait to be {event.to}ed: send"
    return build, (replace(move_progress(build, refused=why, reply_to=event.reply_to), move=event.move),)


def _delete(build: Build, event: BuildDeleteRequested, now: float, limits: AttemptLimits) -> Stepped:
    move = open_move(build)
    if move.phase == "away":
        return build, (deleted_elsewhere(move, event),)
    known = event.reply_to in build.replies
    if not known:
        build = replace(build, replies=(*build.replies, event.reply_to))
    if move.goal == "deleted":
        return build, waited_for(build)
    if move.phase == "send":
        build = over(build, "given up", DELETED, now)
    return _recalled(build, "deleted", DELETED, now, limits)


def deleted_elsewhere(move: BuildMove, event: BuildDeleteRequested) -> HandoverReported:
    """Return a deletion for the scheduler, which knows the build's cell."""
    return HandoverReported(
        move=move.id,
        build=event.build,
        cell=move.placed.cell,
        half=move.half or "leaving",
        outcome="delete",
        reply_to=event.reply_to,
    )


def _handover_received(build: Build, told: HandoverProgress, now: float, limits: AttemptLimits) -> Stepped:
    move = open_move(build)
    match told.say:
        case "back":
            return _back(build, told, now, limits)
        case "done" if move.phase == "away":
            return _left_cell(build, told, now, limits, "moved")
        case "deleted" if move.phase in ("away", "recall"):
            return _left_cell(build, told, now, limits, "deleted")
        case _:
            return build, waited_for(build)


def _left_cell(
    build: Build,
    told: HandoverProgress,
    now: float,
    limits: AttemptLimits,
    status: Literal["moved", "deleted"],
) -> Stepped:
    """End the move: the build left this cell, and its leftovers here are destroyed."""
    move = open_move(build)
    if move.kept:
        build = source_left(build, now, limits)
    replies = build.replies if status == "deleted" else ()
    move = replace(open_move(build), silent=move.phase == "away")
    build = replace(build, generation=None, move=move)
    build, said = close(build, "deleted" if status == "deleted" else "done", move.cause, now, status)
    return build, (*said, *(say.deleted(build, reply_to) for reply_to in replies))


def _back(build: Build, told: HandoverProgress, now: float, limits: AttemptLimits) -> Stepped:
    """Return the build to this cell with its old resources, or with the reason why they are lost."""
    move = open_move(build)
    deleted = move.goal == "deleted"
    move = replace(
        move,
        goal="deleted" if deleted else told.end if told.end in ("reverted", "aborted") else "error",
        cause=told.cause,
        highest=max(move.highest, told.above),
        step=max(move.step, told.steps),
        phases=(*move.phases, *told.phases),
        attempts=told.attempts,
    )
    build = replace(build, generation=told.generation, status="moving", move=move)
    if deleted:
        build, said = close(build, "deleted", DELETED, now, "deleting", say.destroy(build))
        return replace(build, deadline=now + limits.delete_timeout), said
    if move.kind == "unshelve":
        return close(build, move.goal or "error", move.cause, now, "shelved")
    return returned(build, now, limits, told.problem)

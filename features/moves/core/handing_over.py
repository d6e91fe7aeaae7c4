"""The builds of an instance that moves to another cell, in both cells."""

from typing import Literal

from msgspec.structs import replace

from bus.messages import AgentReported, BuildDeleteRequested, BuildPlaced
from bus.parts import PlacedParts
from cell_conductor.extension import (
    AttemptLimits,
    Build,
    Effects,
    Event,
    Leftover,
    Stepped,
    builds,
    leftovers,
)
from features.moves.core import phases
from features.moves.core.beginning import DELETED, new_move
from features.moves.core.phases import BUILT, KEPT, BuildMove, closed, half_of, held, last_move, with_move
from features.moves.messages import HandoverProgress, HandoverReported, MovePlaced

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
    """Return the report that the instance does not leave its cell, with the reason."""
    return half_of(order, "leaving", outcome, cause=why)


def step_of_leaving(build: Build, event: Event, now: float, limits: AttemptLimits) -> Stepped:
    """Decide an event of an instance that leaves for another cell."""
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
        waited_since=boot.waited_since,
        parts=PlacedParts(*[part for part in boot.parts if not part.replaces_others]),
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

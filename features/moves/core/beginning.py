"""Begins moves, applies placement's answers to them, and answers late messages about ended moves."""

from msgspec.structs import replace

from bus import claims
from bus.vocabulary import Contended
from cell_conductor.extension import (
    AttemptLimits,
    Build,
    Effects,
    Leftover,
    Stepped,
    builds,
    holds_instead,
    leftovers,
    position_of,
    swap_result,
    with_allocations,
)
from features.moves.core import phases
from features.moves.core.phases import (
    BUILT,
    KEPT,
    BuildMove,
    ended,
    has_lost_claim,
    held,
    last_move,
    move_in_progress,
    refused_move,
    with_move,
    without_record,
)
from features.moves.messages import SHELVED, MoveEnd, MovePlaced, MoveProgress, MoveReported, MoveSteered

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
    """Return the answer to an order for a move that is not in progress: its end again, or why it has no
    effect.
    """
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

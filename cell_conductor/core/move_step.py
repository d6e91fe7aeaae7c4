"""A build in a move as a pure step: (build, event) → (build, messages).

Like `core/step.py`, for a build that was placed again while its guest exists. Reports from the source never
destroy the guest there while the move is open; that is its last step, or part of a deletion. The phases and
their order are in `core/phases.py`.
"""

from msgspec.structs import replace

from bus.messages import AgentReported, BuildDeleteRequested, BuildPlaced, BuildReshaped
from bus.moves import MovePlaced, MoveReported, MoveSteered
from bus.vocabulary import MAX_CAUSE
from cell_conductor.core import build as say
from cell_conductor.core import leftovers
from cell_conductor.core.answers import reshaped
from cell_conductor.core.build import Build
from cell_conductor.core.events import (
    AttemptLimits,
    CleanedUp,
    Event,
    MoveImpossible,
    ReleaseAnswer,
    Stalled,
    SwapAnswered,
    SwapImpossible,
)
from cell_conductor.core.move import ASKING
from cell_conductor.core.moving_out import step_of_leaving
from cell_conductor.core.phases import (
    Stepped,
    arrived,
    close,
    deleting,
    enter,
    failed_there,
    move_progress,
    open_move,
    over,
    pending,
    phase_without_guest,
    reminder,
    tried,
    waited_for,
    way_back,
)
from cell_conductor.core.placed_move import DELETED, answered, released, stale_move_report

NO_RESULT = "no result within {:g} s"


def step_of_move(build: Build, event: Event, now: float, limits: AttemptLimits) -> Stepped:
    """Apply an event to a build in a move."""
    move = open_move(build)
    if move.leaves:
        return step_of_leaving(build, event, now, limits)
    match event:
        case MovePlaced() | MoveImpossible():  # of this move; other moves are postponed or never begun
            return build, waited_for(build)
        case BuildPlaced():
            return build, say.repeated_end(build)
        case BuildReshaped():
            return reshaped(build, event), ()
        case CleanedUp():
            return leftovers.leftover_released(build, event), ()
        case Stalled():
            return build, (reminder(build),) if move.phase in ASKING else waited_for(build)
        case BuildDeleteRequested():
            return deleting(build, event.reply_to, now, limits, DELETED)
        case MoveSteered():
            return steered(build, event, now, limits)
        case MoveReported() if event.move != move.id:
            return build, stale_move_report(build, event)
        case MoveReported():
            return _phase_reported(build, event, now, limits)
        case AgentReported():
            return _agent_reported(build, event, now, limits)
        case SwapAnswered(attempt=build.attempt, asked_in=move.asks):
            return answered(build, event.result, now, limits)
        case SwapImpossible(attempt=build.attempt, asked_in=move.asks):
            why = f"placement refused to judge it ({event.why})"
            return answered(build, None, now, limits, why)
        case ReleaseAnswer(asked_in="moving") if move.phase == "release":
            return released(build, event.result, now, limits)
        case _:
            return build, ()


def _phase_reported(build: Build, report: MoveReported, now: float, limits: AttemptLimits) -> Stepped:
    move = open_move(build)
    if report.outcome == "overdue":
        return _overdue(build, now, limits)
    if (report.phase, report.step) != (move.phase, move.step):
        return build, () if report.outcome == "progress" else waited_for(build)
    cause = report.cause or "failed without giving a cause"
    match report.outcome, move.phase:
        case "progress", _:
            heard = replace(build, deadline=now + limits.build_timeout)
            if report.percent == move.percent:
                return heard, ()
            heard = replace(heard, move=replace(move, percent=report.percent))
            return heard, (move_progress(heard),)
        case "done", _:
            return _done(build, now, limits)
        case _, "prepare":
            return failed_there(build, "failed", cause, now, limits, left=report.leftover, retry=report.retry)
        case _, "send":
            build = over(build, "failed", cause, now)
            why = f"{move.left} could not send it: {cause}"
            if move.kind == "shelve":  # the guest may be stopped permanently, for example by a power failure
                return way_back(build, "error", why, now, limits)
            return _to_the_way_back(build, why, now, limits)
        case _, "start":
            return _not_started(build, cause, now, limits, left=report.leftover)
        case _, "rebuild":
            return _not_rebuilt(over(build, "failed", cause, now), cause, now)
        case _:
            return resumed(over(build, "failed", cause, now), cause, now)


def _done(build: Build, now: float, limits: AttemptLimits) -> Stepped:
    move = open_move(build)
    build = over(build, "done", "", now)
    match move.phase:
        case "prepare":
            return enter(build, "start" if move.half == "arriving" else "send", now, limits)
        case "send" if move.kind == "shelve":
            return enter(build, "destroy", now, limits)
        case "send":
            return enter(build, "start", now, limits)
        case "start" if move.placed.verify and move.kind in ("migrate", "resize"):
            return enter(tried(build, "built", "", now), "verify", now, limits)
        case "resume":
            return resumed(build, "", now)
        case _:  # start or rebuild
            return arrived(tried(build, "built", "", now), now, limits)


def _not_started(build: Build, cause: str, now: float, limits: AttemptLimits, left: bool) -> Stepped:
    told = say.host_failed(build, cause)
    build = tried(over(build, "failed", cause, now), "failed", cause, now)
    if left:
        build = leftovers.add_leftover(build, now, limits.cleanup_timeout, above=open_move(build).was)
    return way_back(build, "error", "it could not be started", now, limits, told)


def _not_rebuilt(build: Build, cause: str, now: float) -> Stepped:
    """End a failed rebuild: the old guest continues."""
    move = open_move(build)
    build = replace(build, attempt=move.was, became=move.before)
    return close(build, "error", f"it could not be rebuilt, and is as it was: {cause}", now, "active")


def _to_the_way_back(build: Build, why: str, now: float, limits: AttemptLimits) -> Stepped:
    """Return to the source, because the destination has prepared but never started."""
    build = leftovers.add_leftover(build, now, limits.cleanup_timeout, above=open_move(build).was)
    return way_back(build, "error", why, now, limits)


def _agent_reported(build: Build, report: AgentReported, now: float, limits: AttemptLimits) -> Stepped:
    """Apply a report about builds or destructions of any attempt. The moving guest's own report changes
    nothing.
    """
    move = open_move(build)
    mine = report.attempt == build.attempt
    if report.outcome == "destroyed":
        return _destroyed(build, report.attempt, now, limits)
    if mine and move.phase == "build":
        match report.outcome:
            case "built":
                build = tried(over(build, "done", "", now), "built", "", now)
                return arrived(build, now, limits)
            case "failed":
                cause = report.cause or "failed without giving a cause"
                return failed_there(
                    build, "failed", cause, now, limits, left=report.leftover, retry=report.retry
                )
            case "progress":
                return replace(build, deadline=now + limits.build_timeout), ()
        return build, ()
    if report.attempt == move.was or report.attempt > build.attempt:
        return build, ()
    clean = tuple(
        say.destroy_left(build, left)
        for left in build.leftovers
        if left.attempt == report.attempt and not left.gone
    )
    again = () if report.outcome == "progress" else waited_for(build)
    return build, again if move.phase == "undo" else (*clean, *again)


def _destroyed(build: Build, attempt: int, now: float, limits: AttemptLimits) -> Stepped:
    cause = "destroyed on the host, not by this conductor"
    move, mine = open_move(build), attempt == build.attempt
    match move.phase:
        case "undo":
            return undone(build, now, limits)
        case "destroy" if mine:
            return enter(over(build, "done", "", now), "release", now, limits)
        case "prepare" | "build" if mine:
            return failed_there(build, "failed", cause, now, limits)
        case "start" if mine:
            return _not_started(build, cause, now, limits, left=False)
        case "verify":
            return build, ()
        case _:  # repeat what this led to
            said = move.phase in ASKING or move.first <= attempt < build.attempt
            return build, waited_for(build) if said else ()


def _overdue(build: Build, now: float, limits: AttemptLimits) -> Stepped:
    move = open_move(build)
    if move.phase in ASKING:
        return build, waited_for(build)
    if not build.deadline or now < build.deadline:
        return build, ()
    cause = NO_RESULT.format(build.deadline - move.began)
    match move.phase:
        case "prepare" | "build":
            return failed_there(build, "timed out", cause, now, limits, left=True)
        case "send":
            build = over(build, "timed out", cause, now)
            why = f"{move.left} did not send it: {cause}"
            if move.kind == "shelve":
                return way_back(build, "error", why, now, limits)
            return _to_the_way_back(build, why, now, limits)
        case "start":  # it may run there, so it belongs there, and the order stays queued
            told = say.host_failed(build, cause)
            build = tried(over(build, "timed out", cause, now), "timed out", cause, now)
            why = f"{move.host} did not say that it runs; it is there, or will be: {cause}"
            build, said = arrived(build, now, limits, "error", why)
            return build, (told, *said)
        case "rebuild":  # the order stays queued, so it may become the new guest
            build = over(build, "timed out", cause, now)
            return close(build, "error", f"it may yet be rebuilt: {cause}", now, "active")
        case "resume":
            return resumed(over(build, "timed out", cause, now), cause, now)
        case "verify":
            return arrived(over(build, "done", "nobody objected", now), now, limits)
        case "undo":
            return undoing(build, now, limits)
        case _:  # destroy: its resources stay held until it is destroyed
            build = leftovers.add_leftover(over(build, "timed out", cause, now), now, limits.cleanup_timeout)
            return enter(build, "release", now, limits)


GOES_BACK = "it is on its way back already"
AS_ASKED = {"revert": "reverted", "abort": "aborted"}


def steered(build: Build, event: MoveSteered, now: float, limits: AttemptLimits) -> Stepped:
    """Apply the request, or refuse it with the reason."""
    move = open_move(build)
    if event.move != move.id:
        return _refused(build, event, f"the instance is in another move, {move.id}")
    if move.goal and AS_ASKED.get(event.to) == move.goal:  # asked before
        return build, (move_progress(build, reply_to=event.reply_to), *waited_for(build))
    if move.goal:
        return _refused(build, event, GOES_BACK)
    match event.to, move.phase:
        case "confirm", "verify":
            return arrived(over(build, "done", "confirmed", now), now, limits)
        case "revert", "verify":
            build = over(build, "given up", "reverted", now)
            build = leftovers.add_leftover(build, now, limits.cleanup_timeout, above=move.was)
            build = replace(build, move=replace(open_move(build), may_run=True))
            return way_back(build, "reverted", "", now, limits)
        case "abort", "prepare" | "send" | "build" | "swap" | "undo":
            if move.phase != "swap":
                build = over(build, "given up", "aborted", now)
            if move.phase in ("prepare", "build") or (move.phase == "send" and move.kind != "shelve"):
                build = leftovers.add_leftover(build, now, limits.cleanup_timeout, above=move.was)
            return way_back(build, "aborted", "", now, limits)
        case "force", "send" if move.kind == "live":
            build = replace(build, move=replace(move, forced=True))
            return enter(build, "send", now, limits)
    return _refused(build, event, _why_not(event, move.phase))


def _why_not(event: MoveSteered, phase: str) -> str:
    match event.to:
        case "confirm":
            return f"it does not wait to be confirmed: {phase}"
        case "revert":
            return f"it does not wait to be reverted: {phase}"
        case "abort":
            return f"it is too late for that: {phase}"
        case _:
            return f"only the copying of a live migration ends sooner: {phase}"


def _refused(build: Build, event: MoveSteered, why: str) -> Stepped:
    told = move_progress(build, refused=why, reply_to=event.reply_to)
    return build, (replace(told, move=event.move),)


def undoing(build: Build, now: float, limits: AttemptLimits) -> Stepped:
    """Continue after silence about a destruction. A guest that may run is awaited as long as its resources
    are held; a guest that failed to start, or was silent before the next destination, is not.
    """
    move = open_move(build)
    waits = pending(build)
    if not move.goal:
        return enter(over(build, "timed out", "no answer", now), "swap", now, limits)
    if move.may_run and any(now < left.until for left in waits):
        cause = f"{', '.join(build.hosts[left.at].host for left in waits)}: nothing was heard; asked again"
        build = replace(build, deadline=now + limits.delete_timeout)
        return build, (move_progress(build, refused=cause), *waited_for(build))
    return enter(over(build, "timed out", "no answer", now), phase_without_guest(build), now, limits)


def undone(build: Build, now: float, limits: AttemptLimits) -> Stepped:
    if pending(build):
        return build, ()
    return enter(over(build, "done", "", now), phase_without_guest(build), now, limits)


def resumed(build: Build, problem: str, now: float) -> Stepped:
    move = open_move(build)
    assert move.goal
    if problem:
        cause = f"{move.cause}; it did not go on at {move.left}: {problem}"[:MAX_CAUSE]
        return close(build, "error", cause, now, "active")
    return close(build, move.goal, move.cause, now, "active")

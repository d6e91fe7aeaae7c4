"""Applies one event to a build in a move, as a pure function: (build, event) → (build, messages).

`course.py` passes the events of builds in a move to this module. A report from the source host never causes
the destruction of the guest there; only the move's last step or a deletion of the build does. `phases.py`
defines the phases and their order.
"""

from msgspec.structs import replace

from bus.messages import AgentReported, BuildDeleteRequested, BuildEndRequested, BuildPlaced, BuildReshaped
from bus.vocabulary import cause_of
from cell_conductor.extension import AttemptLimits, Build, Event, Stepped, builds, events, leftovers, reshaped
from features.moves.core import phases
from features.moves.core.beginning import DELETED, answered, released, stale_move_report
from features.moves.core.handing_over import recalled, step_of_leaving
from features.moves.core.phases import (
    ASKING,
    BuildMove,
    MoveImpossible,
    PhaseOutcome,
    move_in_progress,
    with_move,
)
from features.moves.core.steering import why_not_steered
from features.moves.messages import MovePlaced, MoveReported, MoveSteered


def step_of_move(build: Build, event: Event, now: float, limits: AttemptLimits) -> Stepped:
    """Decide an event of a build that moves within its cell."""
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
    if why := why_not_steered(event.to, move.kind, move.phase):
        return _refused(build, event, why)
    match event.to, move.phase:
        case "confirm", _:
            return phases.arrived(phases.end_phase(build, "done", "confirmed", now), now, limits)
        case "revert", _:
            build = phases.end_phase(build, "given up", "reverted", now)
            build = leftovers.add(build, now, limits.cleanup_timeout, above=move.was)
            build = with_move(build, replace(phases.open_move(build), may_run=True))
            return phases.way_back(build, "reverted", "", now, limits)
        case "abort", "send" if move.leaves:
            return recalled(phases.end_phase(build, "given up", "aborted", now), "aborted", "", now, limits)
        case "abort", _:
            if move.phase != "swap":
                build = phases.end_phase(build, "given up", "aborted", now)
            if move.phase in ("prepare", "build") or (move.phase == "send" and move.kind != "shelve"):
                build = leftovers.add(build, now, limits.cleanup_timeout, above=move.was)
            return phases.way_back(build, "aborted", "", now, limits)
        case _:
            build = with_move(build, replace(move, forced=True))
            return phases.enter(build, "send", now, limits)


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
    """End a move that the source left unchanged, as soon as nothing is pending: the guest at the destination
    is destroyed.
    """
    return (build, ()) if phases.pending(build) else _without_guest(build, "done", "", now, limits)


def _without_guest(
    build: Build, outcome: PhaseOutcome, why: str, now: float, limits: AttemptLimits
) -> Stepped:
    after = phases.phase_without_guest(build)
    return phases.enter(phases.end_phase(build, outcome, why, now), after, now, limits)


def resumed(build: Build, problem: str, now: float) -> Stepped:
    """End a move after the source was asked to resume the guest; with a problem the move ends as an error."""
    move = phases.open_move(build)
    assert move.goal
    if problem:
        cause = cause_of(f"{move.cause}; it did not go on at {move.left}: {problem}")
        return phases.close(build, "error", cause, now, "active")
    return phases.close(build, move.goal, move.cause, now, "active")

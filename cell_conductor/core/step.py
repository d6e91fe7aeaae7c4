"""Applies one event to a build in its cell, as a pure function: (build, event) → (build, messages).

    building → active                      the agent has built the guest
    building → swapping                    the attempt failed or timed out: placement must claim the next host
    swapping → building                    placement has claimed the next host
    swapping → error                       no host is left, or the build was aborted
    building, swapping, active → deleting  a client deletes the build
    deleting → deleted                     the guest is destroyed, and placement has released its allocations
    error → deleted                        a client deletes the build

A guest left behind on a host keeps its resources there until its agent confirms the destruction or a time
limit passes; meanwhile the build continues on another host, or is deleted.

An active build may move (`moves/core/move_step.py`) or be shelved. A build that moved to another cell
(`moves/core/handover.py`) keeps its record, so that no late message builds it again.

All effects are messages: ClaimRequested and ReleaseRequested are questions to placement, all others are
published. A redelivered event returns the same messages again.
"""

from msgspec.structs import replace

from bus.claims import ClaimRequested, ReleaseRequested
from bus.messages import AgentReported, Attempt, BuildDeleteRequested, BuildPlaced, BuildReshaped
from bus.moves import HandoverProgress, MovePlaced, MoveReported, MoveSteered
from bus.preemption import Vacating
from cell_conductor.adoption.course import adopted
from cell_conductor.core import build as builds
from cell_conductor.core import events, leftovers
from cell_conductor.core.answers import doomed, release_answered, reshaped, stale_report, swapped
from cell_conductor.core.build import Build, Effects, Stepped
from cell_conductor.core.events import AttemptLimits, Event
from cell_conductor.moves.core.handover import (
    arrives,
    event_of_moved,
    handover,
    handover_in_other_phase,
    not_going,
)
from cell_conductor.moves.core.move_step import step_of_move
from cell_conductor.moves.core.phases import repeated_move_end
from cell_conductor.moves.core.placed_move import begun, end_of_refused, late_move_report, late_steering
from cell_conductor.preemption.courses import (
    has_left,
    left,
    orders_to_vacate,
    repeated_requeue,
    step_of_waiting,
    vacate,
)


def step(
    build: Build | None, event: Event, now: float, limits: AttemptLimits
) -> tuple[Build | None, Effects]:
    """Return the build after an event, and messages: at most one is a claim or release for placement. A build
    that the cell does not know is None.
    """
    if isinstance(event, events.Adoption):
        return adopted(build, event, now)
    if build is None:
        return _unknown(event, now, limits)
    effects: Effects = ()
    if isinstance(event, events.CleanedUp):
        build = leftovers.without_released(build, event.consumer, event.result)
    else:
        if isinstance(event, AgentReported) and event.outcome == "destroyed":
            build = leftovers.confirm(build, event.attempt, now)
        build, effects = _known(build, event, now, limits)
    if not any(isinstance(effect, ClaimRequested | ReleaseRequested) for effect in effects):
        effects = (*effects, *leftovers.release_due(build, now))
    if build.vacates is not None:
        effects = (*effects, *has_left(build))
    return builds.timed(build), effects


def _known(build: Build, event: Event, now: float, limits: AttemptLimits) -> Stepped:
    if isinstance(event, Vacating) and event.say == "vacate":
        return vacate(build, event, now, limits)
    if build.awaits:
        return step_of_waiting(build, event, now, limits)
    if build.moving is not None:
        if isinstance(event, HandoverProgress) and not build.moving.leaves:
            return build, handover_in_other_phase(build, event)
        if isinstance(event, MovePlaced) and event.move != build.moving.id:
            return build, end_of_refused(event, now, f"the instance is in the move {build.moving.id}")
        return step_of_move(build, event, now, limits)
    return _in_any_status(build, event, now, limits) or _in_its_status(build, event, now, limits)


def _in_any_status(build: Build, event: Event, now: float, limits: AttemptLimits) -> Stepped | None:
    """Return the result of an event that means the same in all statuses; None: the status decides."""
    match event:
        case HandoverProgress():
            return handover(build, event, now, limits)
        case MovePlaced() if event.out_of:
            return arrives(build, event, now, limits) or (build, ())
        case MovePlaced():
            return begun(build, event, now, limits)
        case events.MoveImpossible():
            return begun(build, event.placed, now, limits, event.why)
        case MoveReported():
            return late_move_report(build, event)
        case MoveSteered():
            return build, late_steering(build, event)
        case AgentReported() if event.attempt != build.attempt or _is_elsewhere(build, event):
            return build, stale_report(build, event)
        case BuildReshaped():
            return reshaped(build, event), ()
        # an answer for a move that has ended: its end may not be published yet (see `_error`)
        case events.SwapAnswered(asked_in=asked) if asked:
            return build, repeated_move_end(build)
        case events.ReleaseAnswer(asked_in="moving"):
            return build, repeated_move_end(build)
        case BuildPlaced() if build.placed is not None and build.status not in ("building", "swapping"):
            return build, builds.repeated_end(build)
        case AgentReported(outcome="progress") if build.status in ("shelved", "error", "deleted"):
            return build, (builds.destroy(build),)  # the guest is not needed any more
        case BuildDeleteRequested() if build.status in ("building", "swapping", "active", "deleting"):
            return _delete(build, event, now, limits)
    return None


def _in_its_status(build: Build, event: Event, now: float, limits: AttemptLimits) -> Stepped:
    match build.status:
        case "building":
            return _building(build, event, now, limits)
        case "swapping":
            return _swapping(build, event, now, limits)
        case "active":
            return _active(build, event)
        case "shelved":
            return _shelved(build, event, now, limits)
        case "error":
            return _error(build, event)
        case "deleting":
            return _deleting(build, event, now, limits)
        case "deleted":
            return _deleted(build, event, now, limits)
        case "moved":
            return event_of_moved(build, event)
        case "moving" | "verifying":
            raise AssertionError(f"{build.id} moves, in no move")


def _is_elsewhere(build: Build, report: AgentReported) -> bool:
    """Return whether an agent's report is about a guest on another host than the build's recorded host.

    After a fail-over that lost commits, an attempt may have been placed twice: only the guest on the recorded
    host is kept.
    """
    return build.placed is not None and report.root != build.host.root


def _unknown(event: Event, now: float, limits: AttemptLimits) -> tuple[Build | None, Effects]:
    match event:
        case BuildPlaced():
            build = replace(builds.new_build(event, now), deadline=now + limits.build_timeout)
            return build, orders_to_vacate(build) if build.awaits else (builds.order(build),)
        case Vacating(say="vacate"):
            return None, (left(event.build, event.other, event.cell),)
        case BuildDeleteRequested():  # stored, because the build's message may arrive later
            build = Build(id=event.build, cell=event.cell, status="deleted", placed=None)
            return build, (builds.deleted(build, event.reply_to),)
        case MovePlaced() if event.out_of:
            return arrives(None, event, now, limits) or (None, end_of_refused(event, now))
        case MovePlaced():
            return None, end_of_refused(event, now)
        case HandoverProgress(say="leave"):
            return None, (not_going(event, "its cell does not know the build"),)
        case events.MoveImpossible():
            return None, end_of_refused(event.placed, now)
        case MoveSteered():
            return None, late_steering(None, event)
        case _:
            return None, ()


def _building(build: Build, event: Event, now: float, limits: AttemptLimits) -> Stepped:
    match event:
        case BuildPlaced() | events.Stalled() | Vacating():
            return build, (builds.order(build),)
        # another conductor has applied this answer (see `_error`)
        case events.SwapAnswered(attempt=attempt) if attempt < build.attempt:
            return build, (builds.order(build),)
        case AgentReported(outcome="built"):
            tried = builds.attempt_over(build.host, "built", "", build.started, now)
            build = replace(
                build, status="active", end="active", attempts=(*build.attempts, tried), deadline=0.0
            )
            return build, (builds.ended(build),)
        case AgentReported(outcome="failed"):
            cause = event.cause or "failed without giving a cause"
            tried = builds.attempt_over(build.host, "failed", cause, build.started, now)
            failed = builds.host_failed(build, cause, ours=event.retry)
            if event.leftover:
                build = leftovers.add(build, now, limits.cleanup_timeout)
            build, effects = _attempt_failed(build, tried, limits, abort=not event.retry)
            return build, (failed, *effects)
        case AgentReported(outcome="destroyed"):
            cause = "destroyed on the host, not by this conductor"
            return _attempt_failed(
                build, builds.attempt_over(build.host, "failed", cause, build.started, now), limits
            )
        case AgentReported(outcome="progress"):  # progress extends the time limit
            return replace(build, deadline=now + limits.build_timeout), ()
        case AgentReported(outcome="overdue") if now >= build.deadline:
            cause = f"no result within {build.deadline - build.started:g} s"
            tried = builds.attempt_over(build.host, "timed out", cause, build.started, now)
            failed = builds.host_failed(build, cause)
            build = leftovers.add(build, now, limits.cleanup_timeout)
            build, effects = _attempt_failed(build, tried, limits)
            return build, (failed, *effects)
        case _:
            return build, ()


def _swapping(build: Build, event: Event, now: float, limits: AttemptLimits) -> Stepped:
    match event:
        case BuildPlaced() | AgentReported(outcome="failed" | "destroyed" | "overdue"):
            return build, (builds.question(build),)
        case events.Stalled():
            return build, (builds.overdue(build),)
        case events.SwapAnswered(attempt=build.attempt) if not build.doom:
            return swapped(build, event.result, now, limits)
        case events.ReleaseAnswer(asked_in="swapping") if build.doom:
            return release_answered(build, event.result)
        case _:
            return build, ()


def _active(build: Build, event: Event) -> Stepped:
    match event:
        case AgentReported(outcome="built" | "failed") if build.move is not None:
            return build, repeated_move_end(build)
        case AgentReported(outcome="built" | "failed" | "overdue"):
            return build, (builds.ended(build),)
        case _:
            return build, ()


def _shelved(build: Build, event: Event, now: float, limits: AttemptLimits) -> Stepped:
    match event:
        case AgentReported(outcome="destroyed"):
            return build, repeated_move_end(build)
        case AgentReported(outcome="built" | "failed"):
            return build, (builds.destroy(build), *repeated_move_end(build))
        case AgentReported(outcome="overdue"):
            return repeated_requeue(build, now), ()  # `step` adds the request to be queued again
        case BuildDeleteRequested():  # no guest is left, so its allocations are released immediately
            build, (_, *again) = _delete(build, event, now, limits)
            return build, (builds.question(build), *again)
        case _:
            return build, ()


def _error(build: Build, event: Event) -> Stepped:
    match event:
        case (
            AgentReported(outcome="failed" | "overdue")
            # Another conductor applied the answer first, and may have crashed before it published the build's
            # end.
            | events.SwapAnswered()
            | events.ReleaseAnswer(asked_in="swapping")
        ):
            return build, (builds.destroy(build), builds.ended(build))
        case AgentReported(outcome="built"):
            return build, (builds.destroy(build),)
        case BuildDeleteRequested():
            build = replace(build, status="deleted", replies=(event.reply_to,))
            return build, (builds.deleted(build, event.reply_to),)
        case _:
            return build, ()


def _deleting(build: Build, event: Event, now: float, limits: AttemptLimits) -> Stepped:
    match event:
        case AgentReported(outcome="overdue") if now >= build.deadline:
            build = leftovers.add(build, now, limits.cleanup_timeout)
            return build, (builds.question(build),)
        case AgentReported(outcome="built" | "failed" | "overdue"):
            return build, builds.repeated_end(build)
        case AgentReported(outcome="destroyed"):
            return build, (builds.question(build),)
        # The order to build may have been sent after all victims left, so the agent must destroy the guest.
        case events.Stalled() | Vacating():
            return build, (builds.destroy(build),)
        case events.ReleaseAnswer(asked_in="deleting"):
            return release_answered(build, event.result)
        case _:
            return build, ()


def _deleted(build: Build, event: Event, now: float, limits: AttemptLimits) -> Stepped:
    match event:
        case BuildPlaced():
            placed = builds.new_build(event, now)
            build = replace(placed, version=build.version, started=0.0, doom=builds.DELETED_BEFORE)
            if build.awaits:  # placement has retired the victims already, so they must be destroyed
                return replace(build, deadline=now + limits.build_timeout), orders_to_vacate(build)
            build = replace(build, status="swapping")
            return build, (builds.question(build),)
        case AgentReported(outcome="built" | "failed"):  # the agent reports after the deletion
            return build, (builds.destroy(build), *builds.repeated_end(build))
        case AgentReported(outcome="destroyed" | "overdue") | events.ReleaseAnswer(asked_in="deleting"):
            end = builds.repeated_end(build) if build.end == "error" else ()
            return build, (*end, *(builds.deleted(build, reply_to) for reply_to in build.replies))
        case BuildDeleteRequested():
            ended_by_it = build.move is not None and build.move.end == "deleted"
            again = repeated_move_end(build) if ended_by_it else ()
            return build, (builds.deleted(build, event.reply_to), *again)
        case _:
            return build, ()


def _attempt_failed(build: Build, tried: Attempt, limits: AttemptLimits, abort: bool = False) -> Stepped:
    build = replace(build, status="swapping", attempts=(*build.attempts, tried), deadline=0.0)
    if abort:
        return doomed(build, builds.ABORTED)
    if build.attempt >= limits.max_attempts:
        return doomed(build, f"{build.attempt} attempts failed, which is the limit")
    if not build.spares:
        return doomed(build, "no alternate is left")
    return build, (builds.question(build),)


def _delete(build: Build, event: BuildDeleteRequested, now: float, limits: AttemptLimits) -> Stepped:
    replies = build.replies if event.reply_to in build.replies else (*build.replies, event.reply_to)
    doom = build.doom if build.doom or build.end else builds.DELETED_WHILE_BUILDING
    if build.status != "deleting" or replies != build.replies:
        deadline = build.deadline if build.status == "deleting" else now + limits.delete_timeout
        build = replace(build, status="deleting", replies=replies, doom=doom, deadline=deadline)
        if build.vacates is not None:
            build = replace(build, vacates=replace(build.vacates, requeue=False))
    # The message of the last move's end may be lost, so it is repeated.
    again = () if build.move is None else repeated_move_end(build)
    return build, (builds.destroy(build), *again)

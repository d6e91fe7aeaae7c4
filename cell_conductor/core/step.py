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

Courses (`core/course.py`) are asked first, and may have an active build: it is `held`, for example while it
moves.

All effects are messages: ClaimRequested and ReleaseRequested are questions to placement, all others are
published. A redelivered event returns the same messages again.
"""

from functools import partial

from msgspec.structs import replace

from bus.claims import ClaimRequested, ReleaseRequested
from bus.messages import AgentReported, Attempt, BuildDeleteRequested, BuildPlaced, BuildReshaped
from cell_conductor.core import build as builds
from cell_conductor.core import events, leftovers
from cell_conductor.core.answers import fail, is_stale, release_answered, reshaped, stale_report, swapped
from cell_conductor.core.build import Build, Effects, Stepped
from cell_conductor.core.course import Courses, is_asked, time_limits
from cell_conductor.core.events import AttemptLimits, Event


def step(
    build: Build | None, event: Event, now: float, limits: AttemptLimits, courses: Courses
) -> tuple[Build | None, Effects]:
    """Return the build after an event, and messages: at most one is a claim or release for placement. A build
    that the cell does not know is None. Raise Postponed if the event must be applied again later.
    """
    if build is not None and isinstance(event, AgentReported) and event.outcome == "destroyed":
        build = leftovers.confirm(build, event.attempt, now)
    build, effects = _apply(build, event, now, limits, courses)
    if build is None:
        return None, effects
    due = time_limits(build, courses)
    if not any(isinstance(effect, ClaimRequested | ReleaseRequested) for effect in effects):
        effects = (*effects, *leftovers.release_due(build, now, is_settled=due is not None))
    return build if due is None else builds.timed(build, due), effects


def _apply(
    build: Build | None, event: Event, now: float, limits: AttemptLimits, courses: Courses
) -> tuple[Build | None, Effects]:
    """Apply an event by the first course that does not pass, or else by the kernel."""
    for position, course in enumerate(courses):
        if is_asked(course, build, event):
            kernel = partial(_apply, courses=courses[position + 1 :])
            stepped = course.step(build, event, now, limits, kernel)
            if stepped is not None:
                return stepped
    if build is None:
        return _unknown(event, now, limits)
    return _in_any_status(build, event, now, limits) or _in_its_status(build, event, now, limits)


def _unknown(event: Event, now: float, limits: AttemptLimits) -> tuple[Build | None, Effects]:
    match event:
        case BuildPlaced():
            build = replace(builds.new_build(event, now), deadline=now + limits.build_timeout)
            return build, (builds.order(build),)
        case BuildDeleteRequested():  # stored, because the build's message may arrive later
            build = Build(id=event.build, cell=event.cell, status="deleted", placed=None)
            return build, (builds.deleted(build, event.reply_to),)
        case _:
            return None, ()


def _in_any_status(build: Build, event: Event, now: float, limits: AttemptLimits) -> Stepped | None:
    """Return the result of an event that means the same in all statuses; None: the status decides."""
    match event:
        case events.CleanedUp():
            return leftovers.without_released(build, event.consumer, event.result), ()
        case AgentReported() if is_stale(build, event):
            return build, stale_report(build, event)
        case BuildReshaped():
            return reshaped(build, event), ()
        case BuildPlaced() if build.placed is not None and build.status not in ("building", "swapping"):
            return build, builds.repeated_end(build)
        case AgentReported(outcome="progress") if build.status in ("error", "deleted"):
            return build, (builds.destroy(build),)  # the guest is not needed any more
        case BuildDeleteRequested() if build.status in ("building", "swapping", "active", "deleting"):
            return _delete(build, event, now, limits)
        case events.Stalled():
            return build, (*_unanswered(build), *leftovers.destroy_all(build, roots=event.roots))
    return None


def _unanswered(build: Build) -> Effects:
    """Return the messages whose answers a build waits for, to repeat them."""
    match build.status:
        case "building":
            return (builds.order(build),)
        case "swapping":
            return (builds.overdue(build),)
        # The agent must destroy the guest: the order to build may have been sent after the deletion.
        case "deleting":
            return (builds.destroy(build),)
        case _:
            return ()


def _in_its_status(build: Build, event: Event, now: float, limits: AttemptLimits) -> Stepped:
    match build.status:
        case "building":
            return _building(build, event, now, limits)
        case "swapping":
            return _swapping(build, event, now, limits)
        case "active":
            return _active(build, event)
        case "error":
            return _error(build, event)
        case "deleting":
            return _deleting(build, event, now, limits)
        case "deleted":
            return _deleted(build, event, now)
        case "held":
            return build, ()


def _building(build: Build, event: Event, now: float, limits: AttemptLimits) -> Stepped:
    match event:
        case BuildPlaced():
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
            return build, (builds.claim_or_release(build),)
        case events.SwapAnswered(attempt=build.attempt) if not build.doom:
            return swapped(build, event.result, now, limits)
        case events.ReleaseAnswer(asked_in="swapping") if build.doom:
            return release_answered(build, event.result)
        case _:
            return build, ()


def _active(build: Build, event: Event) -> Stepped:
    match event:
        case AgentReported(outcome="built" | "failed" | "overdue"):
            return build, (builds.ended(build),)
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
            return build, (builds.claim_or_release(build),)
        case AgentReported(outcome="built" | "failed" | "overdue"):
            return build, builds.repeated_end(build)
        case AgentReported(outcome="destroyed"):
            return build, (builds.claim_or_release(build),)
        case events.ReleaseAnswer(asked_in="deleting"):
            return release_answered(build, event.result)
        case _:
            return build, ()


def _deleted(build: Build, event: Event, now: float) -> Stepped:
    match event:
        case BuildPlaced():
            placed = builds.new_build(event, now)
            build = replace(placed, version=build.version, started=0.0, doom=builds.DELETED_BEFORE)
            build = replace(build, status="swapping")
            return build, (builds.claim_or_release(build),)
        case AgentReported(outcome="built" | "failed"):  # the agent reports after the deletion
            return build, (builds.destroy(build), *builds.repeated_end(build))
        case AgentReported(outcome="destroyed" | "overdue") | events.ReleaseAnswer(asked_in="deleting"):
            end = builds.repeated_end(build) if build.end == "error" else ()
            return build, (*end, *(builds.deleted(build, reply_to) for reply_to in build.replies))
        case BuildDeleteRequested():
            return build, (builds.deleted(build, event.reply_to),)
        case _:
            return build, ()


def _attempt_failed(build: Build, tried: Attempt, limits: AttemptLimits, abort: bool = False) -> Stepped:
    build = replace(build, status="swapping", attempts=(*build.attempts, tried), deadline=0.0)
    if abort:
        return fail(build, builds.ABORTED)
    if build.attempt >= limits.max_attempts:
        return fail(build, f"{build.attempt} attempts failed, which is the limit")
    if not build.untried:
        return fail(build, "no alternate is left")
    return build, (builds.claim_or_release(build),)


def _delete(build: Build, event: BuildDeleteRequested, now: float, limits: AttemptLimits) -> Stepped:
    replies = build.replies if event.reply_to in build.replies else (*build.replies, event.reply_to)
    doom = build.doom if build.doom or build.end else builds.DELETED_WHILE_BUILDING
    if build.status != "deleting" or replies != build.replies:
        deadline = build.deadline if build.status == "deleting" else now + limits.delete_timeout
        build = replace(build, status="deleting", replies=replies, doom=doom, deadline=deadline)
    return build, (builds.destroy(build),)

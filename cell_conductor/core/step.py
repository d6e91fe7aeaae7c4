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

Courses (`Course`, below) are asked first, and may have an active build: it is `held`, for example while it
moves.

All effects are messages: ClaimRequested and ReleaseRequested are questions to placement, all others are
published. A redelivered event returns the same messages again.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from bus.claims import ClaimRequested, ReleaseRequested
from bus.messages import (
    AgentReported,
    Attempt,
    BuildDeleteRequested,
    BuildEndRequested,
    BuildPlaced,
    BuildReshaped,
    Selection,
)
from bus.parts import PlacedPart
from bus.vocabulary import Message
from cell_conductor.core import build as builds
from cell_conductor.core import events, leftovers
from cell_conductor.core.answers import fail, is_stale, release_answered, reshaped, stale_report, swapped
from cell_conductor.core.build import Build, Effects, Stepped, overdue
from cell_conductor.core.events import AttemptLimits, Event

# Courses: features that take over events of a build, and may have a build until they give it back.
#
# A course is asked before the kernel (`core/step.py`) if the event is one of its own, if its state is in
# `Build.parts`, or if the scheduler placed the build with the field of its feature. The first course that
# does not pass decides. It calls `kernel` for what it does not change.


Step = Callable[[Build | None, Event, float, AttemptLimits], tuple[Build | None, Effects]]


class Postponed(Exception):
    """Raised by a course if an event must be applied again after the given seconds."""

    def __init__(self, seconds: float, why: str) -> None:
        super().__init__(why)
        self.seconds = seconds


class HeldStatuses(NamedTuple):
    """The statuses (`Build.held_as`) of builds that a course has, as far as the kernel treats them alike."""

    waiting: tuple[str, ...] = ()  # the build waits for an answer: messages are repeated if it does not come
    settled: tuple[str, ...] = ()  # orders to destroy guests left behind are repeated
    ended: tuple[str, ...] = ()  # not shown in lists; the record is deleted some time later


class CourseStands(NamedTuple):
    """The facts of a build that a course has which the kernel must know."""

    guest_on: Selection | None = None  # the host of the build's guest; None: the build's host
    operation: str | None = None  # the id of the course's current or last operation on it, such as a move
    # Times at which the build needs an event `overdue`. None: it waits for an answer, and the course has set
    # its deadline.
    time_limits: Sequence[float] | None = ()
    # makes the report that the conductor sends to itself after the deadline; None: the kernel's `overdue`
    overdue_report: Callable[[Build], Message] | None = None


class Course:
    """A feature's part in the life of a build, as pure functions. This class keeps and does nothing; features
    derive their courses from it, and replace what differs.
    """

    name: str = ""  # the key of its value in stored builds
    # The statuses that the kernel treats in some way while this course has a build.
    statuses: HeldStatuses = HeldStatuses()
    # Its own messages and events: they are always given to it, also for an unknown build.
    events: tuple[type[Any], ...] = ()
    state: type[Struct] | None = None  # the type of its value in `Build.parts`; None: it keeps nothing
    placed_with: type[PlacedPart] | None = None  # it is asked about builds that are placed with this part

    def step(
        self, build: Build | None, event: Any, now: float, limits: AttemptLimits, kernel: Step
    ) -> tuple[Build | None, Effects] | None:
        """Return the build after an event, with messages; None to pass. `kernel` applies an event as if this
        course did not exist. Raise Postponed if the event must be applied again later.
        """
        return None

    def stands(self, build: Build) -> CourseStands:
        """Return what the kernel must know about a build with a state of this course."""
        return CourseStands()


Courses = Sequence[Course]


def is_asked(course: Course, build: Build | None, event: Event) -> bool:
    """Return whether a course is asked about an event before the kernel."""
    if isinstance(event, course.events) or (build is not None and course.state in build.parts):
        return True
    return isinstance(event, BuildPlaced) and course.placed_with in event.parts


def with_state(build: Build, courses: Courses) -> list[Course]:
    """Return the courses that keep a state about a build."""
    return [course for course in courses if course.state in build.parts] if build.parts else []


def guest_on(build: Build, courses: Courses) -> Selection:
    """Return the host on which the guest of a placed build runs."""
    found = (course.stands(build).guest_on for course in with_state(build, courses)) if build.held_as else ()
    return next((each for each in found if each is not None), build.host)


def operation(build: Build, courses: Courses) -> str | None:
    """Return the id of a build's current or last operation of a feature; None if there was none."""
    found = (course.stands(build).operation for course in with_state(build, courses))
    return next((each for each in found if each is not None), None)


def overdue_report(build: Build, courses: Courses) -> Message:
    """Return the report that the conductor sends to itself after the deadline of a build."""
    for course in with_state(build, courses):
        if (report := course.stands(build).overdue_report) is not None:
            return report(build)
    return overdue(build)


def time_limits(build: Build, courses: Courses) -> list[float] | None:
    """Return the times at which a build that waits for no answer needs an event `overdue`; None if the build
    waits for an answer of an agent or of placement.
    """
    if build.status in ("building", "swapping", "deleting"):
        return None
    limits = [left.until for left in build.leftovers]
    for course in with_state(build, courses):
        if (more := course.stands(build).time_limits) is None:
            return None
        limits += more
    return limits


def step(
    build: Build | None, event: Event, now: float, limits: AttemptLimits, courses: Courses
) -> tuple[Build | None, Effects]:
    """Return the build after an event, and messages: at most one is a claim or release for placement. A build
    that the cell does not know is None. Raise Postponed if the event must be applied again later.
    """
    if build is not None and (refused := builds.conflict(build, event)) is not None:
        return build, (refused,)
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
        case BuildEndRequested():
            return None, builds.ended_unknown(event)
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
        case BuildEndRequested():
            deleted = (builds.deleted(build, event.reply_to),) if build.status == "deleted" else ()
            return build, (*builds.repeated_end(build), *deleted)
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

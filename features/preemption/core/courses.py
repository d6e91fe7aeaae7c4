"""Preemption inside a cell: a build waits until the instances that it replaces have left its host.

    the build     awaits victims ── vacate ──→ victim
    the victim    active → deleting → deleted, or shelved ── vacated ──→ the build, which is then ordered

Both messages are repeated until they are answered, and repeating them changes nothing. A build that is
deleted while it awaits victims keeps its allocations until they have left: their guests still use them.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from msgspec.structs import replace

from bus.claims import Held, ReleaseRequested
from bus.messages import AgentReported, BuildDeleteRequested, BuildPlaced, BuildReshaped, DestroyOrdered
from bus.vocabulary import Compact, Contended, Message, seconds_of
from cell_conductor.extension import (
    AttemptLimits,
    Build,
    Course,
    CourseStands,
    Effects,
    Leftover,
    Step,
    Stepped,
    builds,
    events,
    is_stale,
    leftovers,
)
from features.preemption.messages import (
    REQUEUE_WAIT,
    SHELVED,
    BuildPreempted,
    Vacating,
    Victims,
    victims_of_placed,
)
from features.waiting.messages import priority_of


class Vacate(Compact, frozen=True):
    """The order that an instance must leave its host, because a build of higher priority preempts it."""

    by: tuple[str, ...]  # builds that preempt it: several instances of one request may share a victim
    priority: int  # priority of the builds in `by`
    grace: float
    requeue: bool  # True: shelve the victim and request a host for it again; False: delete the victim
    since: float = 0.0  # when the order arrived
    repeat_at: float = 0.0  # when the request for a new host is repeated; 0: never


class Awaited(Compact, frozen=True):
    """The preempted instances that may still use the host of a build."""

    builds: tuple[str, ...]


class VictimShelf(Protocol):
    """Moves and shelves instances; a join with the feature that does this gives it to `VictimCourse`."""

    def is_moving(self, build: Build) -> bool:
        """Return whether a build is in a move, so that it cannot leave its host now."""

    def shelved(self, build: Build) -> Build:
        """Return a build that has left its host as shelved."""

    def off_shelf(self, build: Build) -> Build:
        """Return a shelved build as deleted."""

    def takes(self, build: Build, event: Any) -> bool:
        """Return whether an event begins or refuses a move of a build, which is no victim any more."""


class VictimCourse(Course):
    """The side of an instance that is preempted: deletes or shelves it, and reports that it has left.
    Without a `shelf`, no instance is shelved or in a move.
    """

    name = "victim"
    events = (Vacating,)
    state = Vacate

    def __init__(self, shelf: VictimShelf | None = None) -> None:
        self.shelf = shelf

    def step(
        self, build: Build | None, event: Any, now: float, limits: AttemptLimits, kernel: Step
    ) -> tuple[Build | None, Effects] | None:
        begins_to_leave = isinstance(event, Vacating) and event.say == "vacate"
        if build is None:
            return (None, (left(event.build, event.other, event.cell),)) if begins_to_leave else None
        if begins_to_leave:
            build, effects = vacate(build, event, now, limits, self.shelf)
        elif (vacates := build.parts.get(Vacate)) is not None:
            build, effects = _step_of_victim(build, vacates, event, now, limits, kernel, self.shelf)
        else:
            return None
        return build, (*_as_preempted(build, effects), *has_left(build))

    def stands(self, build: Build) -> CourseStands:
        vacates = build.parts.get(Vacate)
        if vacates is None or not vacates.repeat_at or build.held_as != "shelved":
            return CourseStands()
        return CourseStands(time_limits=(vacates.repeat_at,))


def _step_of_victim(
    build: Build,
    vacates: Vacate,
    event: Any,
    now: float,
    limits: AttemptLimits,
    kernel: Step,
    shelf: VictimShelf | None,
) -> Stepped:
    match event:
        case events.ReleaseAnswer(asked_in="deleting", result=result) if (
            shelf is not None
            and vacates.requeue
            and build.status == "deleting"
            and not isinstance(result, Held | Contended)
        ):
            return shelf.shelved(build), ()
        case AgentReported(outcome="overdue") if not is_stale(build, event):
            if build.held_as == "shelved":
                build = _with_repeated_requeue(build, vacates, now)
        case _ if shelf is not None and shelf.takes(build, event):
            build = replace(build, parts=build.parts.without(Vacate))
    after, effects = kernel(build, event, now, limits)
    assert after is not None
    if isinstance(event, BuildDeleteRequested) and after.status == "deleting" and vacates.requeue:
        after = replace(after, parts=after.parts.having(replace(vacates, requeue=False)))
    return after, effects


def _as_preempted(build: Build, effects: Iterable[Message]) -> Effects:
    """Return the messages of a victim, with the grace period in each order to destroy its guests, and with
    the reason for which placement retires a victim that will be requested again.
    """
    vacates = build.parts.get(Vacate)
    if vacates is None or build.status != "deleting":
        return tuple(effects)
    guests = {(build.attempt, build.host.root)}
    guests |= {(leftover.attempt, build.hosts[leftover.at].root) for leftover in build.leftovers}

    def changed(effect: Message) -> Message:
        match effect:
            case DestroyOrdered() if (effect.attempt, effect.root) in guests:
                return replace(effect, grace=vacates.grace)
            case ReleaseRequested(consumer=build.id) if vacates.requeue:
                return replace(effect, retire=SHELVED, revivable=True)
            case _:
                return effect

    return tuple(map(changed, effects))


def vacate(
    build: Build, event: Vacating, now: float, limits: AttemptLimits, shelf: VictimShelf | None
) -> Stepped:
    """Begin to delete or shelve a preempted build, as `event` orders, to free its host. For a build that was
    never placed, return the message that it has left.
    """
    if build.placed is None:
        return build, (left(event.build, event.other, event.cell),)
    if shelf is not None and shelf.is_moving(build):  # the sender repeats the order until the move has ended
        return build, ()
    is_shelved = build.held_as == "shelved"
    vacates = build.parts.get(Vacate)
    if vacates is None:
        requeue = event.requeue and shelf is not None and (is_shelved or build.status == "active")
        repeat_at = now + limits.destroy_again_after if requeue else 0.0
        vacates = Vacate((event.other,), event.priority, event.grace, requeue, now, repeat_at)
        build = replace(build, parts=build.parts.having(vacates))
        # The preempting build and a holder consumer have the victim's former allocations.
        there = build.status in ("active", "deleting")
        until = now + limits.cleanup_timeout + event.grace if there else now
        holder = event.attempt if event.attempt != build.attempt else 0
        guest = Leftover(build.attempt, build.at, until, not there, holder_attempt=holder)
        build = leftovers.record(build, guest)
    elif event.other not in vacates.by:
        build = replace(build, parts=build.parts.having(replace(vacates, by=(*vacates.by, event.other))))
    if build.status == "active":
        build = replace(build, status="deleting", deadline=now + limits.delete_timeout + event.grace)
    # The build was shelved and preempted at the same time. Placement has retired it, so it cannot be
    # unshelved.
    elif is_shelved and not event.requeue and shelf is not None:
        build = shelf.off_shelf(build)
    return build, (builds.destroy(build),) if build.status == "deleting" else leftovers.destroy_all(build)


def has_left(build: Build) -> Effects:
    """Return the messages that a preempted build has left its host; () if it may still use the host or is not
    preempted.
    """
    vacates, status = build.parts.get(Vacate), build.shown
    if vacates is None or build.leftovers or status not in ("deleted", "shelved", "moved", "error"):
        return ()
    first = build.attempts[0].started if build.attempts else build.started
    preempted = BuildPreempted(
        build=build.id,
        cell=build.cell,
        by=vacates.by[0],
        reason=f"preempted by {vacates.by[0]}, which has priority {vacates.priority}",
        priority=priority_of(build.as_placed.parts),
        requeued=status == "shelved",
        requested=build.as_placed.waited_since or first,
    )
    messages: Effects = (*(left(build.id, by, build.cell) for by in vacates.by), preempted)
    if status == "deleted":
        deleted = builds.deleted(build, build.as_placed.reply_to)
        messages = (*messages, replace(deleted, reason=preempted.reason))
    return messages


def _with_repeated_requeue(build: Build, vacates: Vacate, now: float) -> Build:
    """If a preempted, shelved build must now request again to be queued, return the build with the time of
    the next such request; if not, return it unchanged. `has_left` makes the request.

    The scheduler's request, or the order of the move, can be lost with a queue, and no client repeats it.
    """
    if not 0 < vacates.repeat_at <= now:
        return build
    repeat_at = now + (now - vacates.since)  # repeated after 1, 2, 4 … hours
    if repeat_at > vacates.since + seconds_of(REQUEUE_WAIT):
        repeat_at = 0.0
    return replace(build, parts=build.parts.having(replace(vacates, repeat_at=repeat_at)))


def left(victim: str, by: str, cell: str) -> Vacating:
    """Return the message that a victim has left its host."""
    return Vacating(build=by, other=victim, cell=cell, say="vacated")


class PreemptorCourse(Course):
    """The side of a build that preempts instances: orders them to leave, and is ordered after they left."""

    name = "preemptor"
    events = (Vacating,)
    state = Awaited
    placed_with = Victims

    def step(
        self, build: Build | None, event: Any, now: float, limits: AttemptLimits, kernel: Step
    ) -> tuple[Build | None, Effects] | None:
        awaited = build.parts.get(Awaited) if build is not None else None
        if build is not None and awaited is not None:
            return _step_of_waiting(build, awaited, event, now, limits)
        match event:
            case BuildPlaced() if build is None or build.placed is None:
                return _placed(build, event, now, limits, kernel)
            case Vacating(say="vacated"):  # repeated
                return build, _started_before(build) if build is not None else ()
            case _:
                return None


def _placed(
    build: Build | None, placed: BuildPlaced, now: float, limits: AttemptLimits, kernel: Step
) -> Stepped:
    """Return a new build that waits for its victims, also if it was deleted before: placement has retired the
    victims already, so they must be destroyed.
    """
    made, _ = kernel(build, placed, now, limits)
    assert made is not None
    awaited = Awaited(tuple(victim.build for victim in victims_of_placed(placed.parts)))
    parts, deadline = made.parts.having(awaited), now + limits.build_timeout
    made = replace(made, status="building", deadline=deadline, parts=parts)
    return made, orders_to_vacate(made, awaited)


def _started_before(build: Build) -> Effects:
    """Return the messages that a build waits for after all its victims left."""
    match build.status:
        case "building":
            return (builds.order(build),)
        # The order to build may have been sent after all victims left, so the agent must destroy the guest.
        case "deleting":
            return (builds.destroy(build),)
        case _:
            return ()


def orders_to_vacate(build: Build, awaited: Awaited) -> Effects:
    """Return the orders to delete the victims for which the build waits."""
    victims = {victim.build: victim for victim in victims_of_placed(build.as_placed.parts)}
    return tuple(
        Vacating(
            build=id_,
            other=build.id,
            cell=build.cell,
            say="vacate",
            attempt=victims[id_].attempt,
            priority=priority_of(build.as_placed.parts),
            grace=victims[id_].grace,
            requeue=victims[id_].requeue,
        )
        for id_ in awaited.builds
    )


def _step_of_waiting(
    build: Build, awaited: Awaited, event: Any, now: float, limits: AttemptLimits
) -> Stepped | None:
    """Apply an event to a build that waits until the instances that it preempts have left its host; None to
    pass.
    """
    match event:
        case Vacating(say="vacated"):
            remaining = tuple(id_ for id_ in awaited.builds if id_ != event.other)
            if remaining:
                return replace(build, parts=build.parts.having(Awaited(remaining))), ()
            build = replace(build, parts=build.parts.without(Awaited))
            if build.doom:
                build = replace(build, status="deleting", deadline=now + limits.delete_timeout)
                return build, (builds.claim_or_release(build),)
            build = replace(build, started=now, deadline=now + limits.build_timeout)
            return build, (builds.order(build),)
        case BuildDeleteRequested():
            replies = build.replies if event.reply_to in build.replies else (*build.replies, event.reply_to)
            build = replace(build, replies=replies, doom=builds.DELETED_WHILE_BUILDING)
            return build, orders_to_vacate(build, awaited)
        case AgentReported(outcome="overdue") if now >= build.deadline:
            return replace(build, deadline=now + limits.build_timeout), orders_to_vacate(build, awaited)
        case BuildPlaced() | events.Stalled():
            return build, orders_to_vacate(build, awaited)
        case AgentReported() | BuildReshaped() | events.SwapAnswered() | events.ReleaseAnswer():
            return build, ()
        case _:
            return None

"""Preemption inside a cell: a build waits until the instances that it replaces have left its host.

    the build     awaits victims ── vacate ──→ victim
    the victim    active → deleting → deleted, or shelved ── vacated ──→ the build, which is then ordered

Both messages are repeated until they are answered, and repeating them changes nothing. A build that is
deleted while it awaits victims keeps its allocations until they have left: their guests still use them.
"""

from msgspec.structs import replace

from bus.messages import AgentReported, BuildDeleteRequested, BuildPlaced
from bus.preemption import REQUEUE_WAIT, BuildPreempted, Vacating
from bus.vocabulary import seconds_of
from cell_conductor.core import build as builds
from cell_conductor.core import events, leftovers
from cell_conductor.core.build import Build, Effects, Leftover, Stepped, Vacate
from cell_conductor.core.events import AttemptLimits, Event


def orders_to_vacate(build: Build) -> Effects:
    victims = {victim.build: victim for victim in build.as_placed.preempts}
    return tuple(
        Vacating(
            build=id_,
            other=build.id,
            cell=build.cell,
            say="vacate",
            attempt=victims[id_].attempt,
            priority=build.as_placed.priority,
            grace=victims[id_].grace,
            requeue=victims[id_].requeue,
        )
        for id_ in build.awaits
    )


def step_of_waiting(build: Build, event: Event, now: float, limits: AttemptLimits) -> Stepped:
    """Apply an event to a build that waits until the instances that it preempts have left its host."""
    match event:
        case Vacating(say="vacated"):
            build = replace(build, awaits=tuple(id_ for id_ in build.awaits if id_ != event.other))
            if build.awaits:
                return build, ()
            if build.doom:
                build = replace(build, status="deleting", deadline=now + limits.delete_timeout)
                return build, (builds.question(build),)
            build = replace(build, started=now, deadline=now + limits.build_timeout)
            return build, (builds.order(build),)
        case BuildDeleteRequested():
            replies = build.replies if event.reply_to in build.replies else (*build.replies, event.reply_to)
            build = replace(build, replies=replies, doom=builds.DELETED_WHILE_BUILDING)
            return build, orders_to_vacate(build)
        case AgentReported(outcome="overdue") if now >= build.deadline:
            return replace(build, deadline=now + limits.build_timeout), orders_to_vacate(build)
        case BuildPlaced() | events.Stalled():
            return build, orders_to_vacate(build)
        case _:
            return build, ()


def vacate(build: Build, event: Vacating, now: float, limits: AttemptLimits) -> Stepped:
    """Begin to delete or shelve a preempted build, as `event` orders, to free its host. For a build that was
    never placed, return the message that it has left.
    """
    if build.placed is None:
        return build, (left(event.build, event.other, event.cell),)
    if build.moving is not None:  # the sender repeats the order until the move has ended
        return build, ()
    if build.vacates is None:
        requeue = event.requeue and build.status in ("active", "shelved")
        repeat_at = now + limits.destroy_again_after if requeue else 0.0
        vacates = Vacate((event.other,), event.priority, event.grace, requeue, now, repeat_at)
        build = replace(build, vacates=vacates)
        # The preempting build and a holder consumer have the victim's former allocations.
        there = build.status in ("active", "deleting")
        until = now + limits.cleanup_timeout + event.grace if there else now
        kept = event.attempt if event.attempt != build.attempt else 0
        build = leftovers.record(build, Leftover(build.attempt, build.at, until, not there, kept=kept))
    elif event.other not in build.vacates.by:
        build = replace(build, vacates=replace(build.vacates, by=(*build.vacates.by, event.other)))
    if build.status == "active":
        build = replace(build, status="deleting", deadline=now + limits.delete_timeout + event.grace)
    # The build was shelved and preempted at the same time. Placement has retired it, so it cannot be
    # unshelved.
    elif build.status == "shelved" and not event.requeue:
        build = replace(build, status="deleted")
    return build, (builds.destroy(build),) if build.status == "deleting" else leftovers.destroy_all(build)


def has_left(build: Build) -> Effects:
    """Return the messages that a preempted build has left its host; () if it may still use the host or is not
    preempted.
    """
    vacates = build.vacates
    if vacates is None or build.leftovers or build.status not in ("deleted", "shelved", "moved", "error"):
        return ()
    first = build.attempts[0].started if build.attempts else build.started
    preempted = BuildPreempted(
        build=build.id,
        cell=build.cell,
        by=vacates.by[0],
        reason=f"preempted by {vacates.by[0]}, which has priority {vacates.priority}",
        priority=build.as_placed.priority,
        requeued=build.status == "shelved",
        requested=build.as_placed.since or first,
    )
    messages: Effects = (*(left(build.id, by, build.cell) for by in vacates.by), preempted)
    if build.status == "deleted":
        deleted = builds.deleted(build, build.as_placed.reply_to)
        messages = (*messages, replace(deleted, reason=preempted.reason))
    return messages


def repeated_requeue(build: Build, now: float) -> Build:
    """If a preempted, shelved build must now request again to be queued, return the build with the time of
    the next such request; if not, return it unchanged.

    The scheduler's request, or the order of the move, can be lost with a queue, and no client repeats it.
    """
    vacates = build.vacates
    if vacates is None or not 0 < vacates.repeat_at <= now:
        return build
    repeat_at = now + (now - vacates.since)  # repeated after 1, 2, 4 … hours
    if repeat_at > vacates.since + seconds_of(REQUEUE_WAIT):
        repeat_at = 0.0
    return replace(build, vacates=replace(vacates, repeat_at=repeat_at))


def left(victim: str, by: str, cell: str) -> Vacating:
    return Vacating(build=by, other=victim, cell=cell, say="vacated")

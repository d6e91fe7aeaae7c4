"""A build's life inside a cell, as a pure step: what is so, and what happened → what is so next, what to do.

    placed → building ─ built ──────────────────────────→ active ──────┐ delete
               │  ↑ failed, overdue                                    ↓
               │  └── swapping: the attempt is over,     delete     deleting ── destroyed, released → deleted
               └────→ placement decides what comes next ──────────────→↑
                        └── no host left, aborted → released → error ── delete → deleted

What may be left on a host that did not answer in time keeps its room there (a Leftover) until the agent says
that it is destroyed, or is given up; meanwhile the build lives on, or is deleted, without it.

Every effect is a message: ClaimRequested and ReleaseRequested are asked, all others emitted. What was once
decided is said again, word for word, when the event that led to it is delivered again.
"""

from dataclasses import dataclass
from itertools import zip_longest

from msgspec.structs import replace

from bus.messages import (
    AgentReported,
    BuildDeleteRequested,
    BuildPlaced,
    ClaimRequested,
    DestroyOrdered,
    ReleaseRequested,
)
from bus.vocabulary import (
    Attempt,
    Claimed,
    ClaimResult,
    Contended,
    Held,
    Refusal,
    Refused,
    ReleaseResult,
    Retired,
    Selection,
)
from cell_conductor.core import build as say
from cell_conductor.core.build import MAX_CAUSE, Build, Effects, Leftover, Status

DELETED_WHILE_BUILDING = "deleted while building"


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """How often a build may be tried, and how long agents may stay silent."""

    max_attempts: int = 3
    build_timeout: float = 1800.0
    delete_timeout: float = 600.0  # after which a build is deleted, whatever its agent has to say
    cleanup_timeout: float = 86400.0  # for how long the room of a guest is kept whose agent says nothing


@dataclass(frozen=True, slots=True)
class SwapAnswered:
    """Placement's word on the swap asked for after this attempt."""

    attempt: int
    result: ClaimResult


@dataclass(frozen=True, slots=True)
class SwapImpossible:
    """Placement would not even consider it."""

    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class GivenBack:
    """Placement's word on the release asked for in this status."""

    asked_in: Status
    result: ReleaseResult


@dataclass(frozen=True, slots=True)
class CleanedUp:
    """Placement's word on the release of the consumer that kept a leftover's room."""

    consumer: str
    result: ReleaseResult


@dataclass(frozen=True, slots=True)
class Stalled:
    """The conductor has restarted, or has heard nothing for long: say again what is being waited for."""


Event = (
    BuildPlaced
    | AgentReported
    | BuildDeleteRequested
    | SwapAnswered
    | SwapImpossible
    | GivenBack
    | CleanedUp
    | Stalled
)

_SETTLED = ("active", "error", "deleted")


def step(
    build: Build | None, event: Event, now: float, limits: AttemptLimits
) -> tuple[Build | None, Effects]:
    """What this event makes of the build. A build that is returned as it came needs no storing.

    Of placement at most one thing is asked.
    """
    if build is None:
        return _unknown(event, now, limits)
    if isinstance(event, AgentReported) and event.outcome == "destroyed":
        build = _left_no_more(build, event.attempt, now)
    build, effects = _known(build, event, now, limits)
    if not any(isinstance(effect, ClaimRequested | ReleaseRequested) for effect in effects):
        effects = (*effects, *_clean_up(build, now))
    return _timed(build), effects


def _known(build: Build, event: Event, now: float, limits: AttemptLimits) -> tuple[Build, Effects]:
    if isinstance(event, AgentReported) and event.attempt != build.attempt:
        return build, _of_another_attempt(build, event)
    if isinstance(event, CleanedUp):
        return _cleaned_up(build, event), ()
    match build.status:
        case "building":
            return _building(build, event, now, limits)
        case "swapping":
            return _swapping(build, event, now, limits)
        case "active":
            return _active(build, event, now, limits)
        case "error":
            return _error(build, event)
        case "deleting":
            return _deleting(build, event, now, limits)
        case "deleted":
            return _deleted(build, event)


# One function for each status


def _unknown(event: Event, now: float, limits: AttemptLimits) -> tuple[Build | None, Effects]:
    match event:
        case BuildPlaced():
            build = Build(
                id=event.build,
                cell=event.cell,
                status="building",
                placed=event,
                attempt=1,
                generation=event.generation,
                started=now,
                deadline=now + limits.build_timeout,
            )
            return build, (say.order(build),)
        case BuildDeleteRequested():  # remembered, in case its placing is still on the way
            build = Build(id=event.build, cell=event.cell, status="deleted", placed=None)
            return build, (say.deleted(build, event.reply_to),)
        case _:
            return None, ()


def _building(build: Build, event: Event, now: float, limits: AttemptLimits) -> tuple[Build, Effects]:
    match event:
        case BuildPlaced() | Stalled():
            return build, (say.order(build),)
        case AgentReported(outcome="built"):
            tried = say.attempt_over(build, "built", "", now)
            build = replace(
                build, status="active", end="active", attempts=(*build.attempts, tried), deadline=0.0
            )
            return build, (say.ended(build),)
        case AgentReported(outcome="failed"):
            cause = event.cause or "failed without giving a cause"
            tried = say.attempt_over(build, "failed", cause, now)
            if event.leftover:
                build = _leave_behind(build, now, limits)
            return _over(build, tried, limits, abort=not event.retry)
        case AgentReported(outcome="destroyed"):
            cause = "destroyed on the host, not by this conductor"
            return _over(build, say.attempt_over(build, "failed", cause, now), limits)
        case AgentReported(outcome="progress"):  # metal takes its time: while it is heard of, it has it
            return replace(build, deadline=now + limits.build_timeout), ()
        case AgentReported(outcome="overdue") if now >= build.deadline:
            cause = f"no result within {build.deadline - build.started:g} s"
            tried = say.attempt_over(build, "timed out", cause, now)
            return _over(_leave_behind(build, now, limits), tried, limits)
        case BuildDeleteRequested():
            return _delete(build, event, now, limits)
        case _:
            return build, ()


def _swapping(build: Build, event: Event, now: float, limits: AttemptLimits) -> tuple[Build, Effects]:
    match event:
        case BuildPlaced() | AgentReported(outcome="failed" | "destroyed" | "overdue"):
            return build, (say.question(build),)
        case Stalled():
            return build, (say.overdue(build),)
        case BuildDeleteRequested():
            return _delete(build, event, now, limits)
        case SwapAnswered(attempt=build.attempt) if not build.doom:
            return _swapped(build, event.result, now, limits)
        case SwapImpossible(attempt=build.attempt) if not build.doom:
            return _doomed(build, f"placement refused to judge the swap ({event.why})")
        case GivenBack(asked_in="swapping") if build.doom:
            return _given_back(build, event.result)
        case _:
            return build, ()


def _active(build: Build, event: Event, now: float, limits: AttemptLimits) -> tuple[Build, Effects]:
    match event:
        case BuildPlaced() | AgentReported(outcome="built" | "failed" | "overdue"):
            return build, (say.ended(build),)
        case BuildDeleteRequested():
            return _delete(build, event, now, limits)
        case _:
            return build, ()


def _error(build: Build, event: Event) -> tuple[Build, Effects]:
    match event:
        case BuildPlaced():
            return build, (say.ended(build),)
        case AgentReported(outcome="failed" | "overdue"):
            return build, (say.destroy(build), say.ended(build))
        case AgentReported(outcome="built" | "progress"):  # too late: nobody counts on it any more
            return build, (say.destroy(build),)
        case BuildDeleteRequested():
            build = replace(build, status="deleted", replies=(event.reply_to,))
            return build, (say.deleted(build, event.reply_to),)
        case _:
            return build, ()


def _deleting(build: Build, event: Event, now: float, limits: AttemptLimits) -> tuple[Build, Effects]:
    match event:
        case AgentReported(outcome="overdue") if not build.deadline:  # by a conductor of before there was one
            return replace(build, deadline=now + limits.delete_timeout), ()
        case AgentReported(outcome="overdue") if now >= build.deadline:
            build = _leave_behind(build, now, limits)
            return build, (say.question(build),)
        case BuildPlaced() | AgentReported(outcome="built" | "failed" | "overdue"):
            return build, say.end_again(build)
        case AgentReported(outcome="destroyed"):
            return build, (say.question(build),)
        case BuildDeleteRequested():
            return _delete(build, event, now, limits)
        case Stalled():
            return build, (say.destroy(build),)
        case GivenBack(asked_in="deleting"):
            return _given_back(build, event.result)
        case _:
            return build, ()


def _deleted(build: Build, event: Event) -> tuple[Build, Effects]:
    match event:
        case BuildPlaced() if build.placed is None:
            doom = "deleted before it was built"
            build = replace(
                build, status="swapping", placed=event, attempt=1, generation=event.generation, doom=doom
            )
            return build, (say.question(build),)
        case BuildPlaced():
            return build, say.end_again(build)
        case AgentReported(outcome="built" | "failed"):  # back from the dead
            return build, (say.destroy(build), *say.end_again(build))
        case AgentReported(outcome="progress"):
            return build, (say.destroy(build),)
        case AgentReported(outcome="destroyed" | "overdue"):
            end = say.end_again(build) if build.end == "error" else ()
            return build, (*end, *(say.deleted(build, reply_to) for reply_to in build.replies))
        case BuildDeleteRequested():
            return build, (say.deleted(build, event.reply_to),)
        case _:
            return build, ()


def _of_another_attempt(build: Build, report: AgentReported) -> Effects:
    """A stale report changes nothing. What it led to is said again, and what it left behind is cleaned."""
    if report.attempt > build.attempt or report.outcome == "destroyed":
        return ()
    if report.outcome == "progress" and all(left.attempt != report.attempt for left in build.leftovers):
        return ()
    clean = DestroyOrdered(
        build=build.id,
        attempt=report.attempt,
        cell=build.cell,
        agent=report.agent,
        root=report.root,
        host=report.host,
    )
    return (clean, say.order(build)) if build.status == "building" else (clean,)


# Moves


def _over(build: Build, tried: Attempt, limits: AttemptLimits, abort: bool = False) -> tuple[Build, Effects]:
    """This attempt is over: take the next alternate, or give up."""
    build = replace(build, status="swapping", attempts=(*build.attempts, tried), deadline=0.0)
    if abort:
        return _doomed(build, "aborted")
    if build.attempt >= limits.max_attempts:
        return _doomed(build, f"{build.attempt} attempts failed, no more are allowed")
    if not build.spares:
        return _doomed(build, "no alternate is left")
    return build, (say.question(build),)


def _doomed(build: Build, why: str) -> tuple[Build, Effects]:
    chain = "; ".join(f"{tried.host} {tried.outcome}: {tried.cause}" for tried in build.attempts)
    build = replace(build, doom=f"{why}: {chain}"[:MAX_CAUSE])
    return build, (say.question(build),)


def _swapped(build: Build, result: ClaimResult, now: float, limits: AttemptLimits) -> tuple[Build, Effects]:
    match result:
        case Claimed():
            return _moved(build, result.choice, result.generation, result.refused, now, limits)
        case Held():
            return _held(build, result, now, limits)
        case Refused():
            build = _refused(build, build.spares, result.refusals, now)
            return _doomed(build, "every alternate was refused")
        case Retired():
            build, _ = _doomed(build, f"its claim has ended ({result.why})")
            return _given_back(build, result)
        case Contended():
            return build, (say.question(build),)


def _held(build: Build, held: Held, now: float, limits: AttemptLimits) -> tuple[Build, Effects]:
    """Placement holds another generation than we thought."""
    for position, spare in enumerate(build.spares):
        if spare.choice.allocations == held.allocations:  # we had asked before, and died before we knew
            return _moved(build, position, held.generation, (), now, limits)
    build = replace(build, generation=held.generation if held.allocations else None)
    if build.host.choice.allocations == held.allocations:  # touched by somebody, but ours still
        return build, (say.question(build),)
    holds = ", ".join(sorted(held.allocations)) or "nothing"
    return _doomed(build, f"its claim was changed by somebody else (it holds {holds})")


def _moved(
    build: Build,
    choice: int,
    generation: int,
    refused: tuple[Refusal, ...],
    now: float,
    limits: AttemptLimits,
) -> tuple[Build, Effects]:
    """Placement gave us this one of the spares: build there."""
    left_behind = say.destroy(build)
    build = replace(
        _refused(build, build.spares[:choice], refused, now),
        status="building",
        at=build.at + 1 + choice,
        attempt=build.attempt + 1,
        generation=generation,
        started=now,
        deadline=now + limits.build_timeout,
    )
    return build, (left_behind, say.order(build))


def _refused(build: Build, spares: tuple[Selection, ...], refusals: tuple[Refusal, ...], now: float) -> Build:
    """Spares that placement turned down cost no attempt, but are part of the story."""
    told = tuple(
        Attempt(
            host=spare.host,
            agent=spare.agent,
            outcome="refused",
            cause=str(refusal or "the reason was lost in a restart"),
            started=now,
            ended=now,
        )
        for spare, refusal in zip_longest(spares, refusals[: len(spares)])
    )
    return replace(build, attempts=(*build.attempts, *told))


def _delete(
    build: Build, event: BuildDeleteRequested, now: float, limits: AttemptLimits
) -> tuple[Build, Effects]:
    replies = build.replies if event.reply_to in build.replies else (*build.replies, event.reply_to)
    doom = build.doom if build.doom or build.end else DELETED_WHILE_BUILDING
    if build.status != "deleting" or replies != build.replies:
        deadline = build.deadline if build.status == "deleting" else now + limits.delete_timeout
        build = replace(build, status="deleting", replies=replies, doom=doom, deadline=deadline)
    return build, (say.destroy(build),)


def _given_back(build: Build, result: ReleaseResult) -> tuple[Build, Effects]:
    """Nothing is held any more: the last word can be said."""
    match result:
        case Held():  # ours to give back all the same, whoever touched it
            generation = result.generation if result.allocations else None
            build = replace(build, generation=generation)
            return build, (say.question(build),)
        case Contended():
            return build, (say.question(build),)
    if build.status == "deleting":
        news: Effects = ()
        if not build.end:
            build = replace(build, end="error")
            news = (say.ended(build),)
        build = replace(build, status="deleted", generation=None)
        return build, (*news, *(say.deleted(build, reply_to) for reply_to in build.replies))
    build = replace(build, status="error", end="error", generation=None)
    return build, (say.destroy(build), say.ended(build))


# Leftovers


def _leave_behind(build: Build, now: float, limits: AttemptLimits) -> Build:
    """The guest of this attempt may still be there."""
    if any(left.attempt == build.attempt for left in build.leftovers):
        return build
    left = Leftover(build.attempt, build.at, now + limits.cleanup_timeout)
    return replace(build, leftovers=(*build.leftovers, left))


def _left_no_more(build: Build, attempt: int, now: float) -> Build:
    """Its agent says so."""
    if not any(left.attempt == attempt and not left.gone for left in build.leftovers):
        return build
    leftovers = tuple(
        replace(left, gone=True, until=now) if left.attempt == attempt else left for left in build.leftovers
    )
    return replace(build, leftovers=leftovers)


def _clean_up(build: Build, now: float) -> Effects:
    """Give back the room of one leftover whose time has come."""
    for left in build.leftovers:
        # Until placement has answered, the room of the last attempt may be on its way to the keeper.
        undecided = left.attempt == build.attempt and build.status not in _SETTLED
        if now >= left.until and not undecided:
            return say.clean_up(build, left)
    return ()


def _cleaned_up(build: Build, event: CleanedUp) -> Build:
    if isinstance(event.result, Contended | Held):
        return build
    left = tuple(one for one in build.leftovers if say.keeper(build, one.attempt) != event.consumer)
    return build if left == build.leftovers else replace(build, leftovers=left)


def _timed(build: Build) -> Build:
    """One that is settled is thought of again when a leftover's time has come."""
    if build.status not in _SETTLED:
        return build
    deadline = min((left.until for left in build.leftovers), default=0.0)
    return build if build.deadline == deadline else replace(build, deadline=deadline)

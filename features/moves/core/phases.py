"""The phases of a move, their order, and the way back.

    migrate, resize   prepare → send → start [→ verify] → done
    live              prepare → send → start → done
    evacuate          build → done
    unshelve          build → done          shelve    send → destroy → release → done
    rebuild           rebuild → done

    prepare or build failed    → swap → prepare or build at the next destination; without one, the way back
    build timed out            → undo → swap → build at the next destination
    the way back               [undo →] back [→ resume] → in its former state, on the source host

    to another cell            leaving (course.py): [send →] away → moved; or resume → former state
                               arriving: as within a cell, without send; its way back [undo →] release → moved

Phases in brackets occur only in some moves. In `undo` the build waits until agents have destroyed the guests
at destinations, or until a time limit; the way back has this phase only if a guest there may run or failed to
start. The way back has `resume` only if the source host received the order to send, and so may have stopped
its guest. In `back` the build takes over the holder consumer's allocations on the source host unchanged. If a
reshape of this host has changed them meanwhile, the next BuildReshaped reports the new allocations.
"""

from typing import Literal

from msgspec.structs import replace

from bus.agent_builds import sent_allocations
from bus.claims import Choice, ClaimRequested, ReleaseRequested
from bus.messages import AgentReported
from bus.vocabulary import MAX_CAUSE, Message, seconds_of
from cell_conductor.extension import AttemptLimits, Build, Effects, Leftover, Stepped, builds, leftovers
from features.moves.core import move as moves
from features.moves.messages import (
    SHELVED,
    MoveEnd,
    MoveOrdered,
    MovePhase,
    MoveProgress,
    MoveReported,
    PhaseOver,
)

# seconds after which a report to the scheduler that a build has left the cell is repeated
AWAY_SECONDS = 60.0


def enter(build: Build, phase: moves.Phase, now: float, limits: AttemptLimits, *before: Message) -> Stepped:
    """Begin a phase of a move; return the build and its messages: the given messages `before`, then the
    messages of the phase.
    """
    move = open_move(build)
    deadline = {
        "verify": now + seconds_of(move.placed.verify_for) if move.placed.verify_for else 0.0,
        "undo": now + limits.delete_timeout,
        "destroy": now + limits.delete_timeout,
        "away": now + AWAY_SECONDS,
    }.get(phase, 0.0 if phase in (*moves.ASKING, *moves.HALF) else now + limits.build_timeout)
    orders = phase not in (*moves.ASKING, *moves.HALF, "undo", "destroy", "verify")
    move = replace(
        move,
        phase=phase,
        began=move.began if phase == move.phase else now,
        step=move.step + orders,
        percent=move.percent if phase == move.phase else 0,
        sent=move.sent or phase == "send",
        host=build.host.host if phase in ("prepare", "build") else move.host,
    )
    statuses: dict[moves.Phase, moves.HeldStatus] = {"verify": "verifying", "away": "moved"}
    build = moves.held(moves.with_move(build, move), statuses.get(phase, "moving"), deadline=deadline)
    return build, (*before, move_progress(build), *waited_for(build))


def end_phase(build: Build, outcome: moves.PhaseOutcome, cause: str, now: float) -> Build:
    move = open_move(build)
    sends = move.phase == "send"
    host = build.hosts[move.source] if sends else build.host
    ended = PhaseOver(move.phase, host.host, outcome, cause[:MAX_CAUSE], move.began, now)
    return moves.with_move(build, replace(move, phases=(*move.phases, ended)))


def tried(build: Build, outcome: Literal["built", "failed", "timed out"], cause: str, now: float) -> Build:
    """Record the outcome of the move's attempt at its current destination in the move's history."""
    move = open_move(build)
    attempt = builds.attempt_over(build.host, outcome, cause, build.started, now)
    return moves.with_move(build, replace(move, attempts=(*move.attempts, attempt)))


def close(
    build: Build,
    end: MoveEnd,
    reason: str,
    now: float,
    status: Literal["active", "deleting", "deleted", "shelved", "moved"],
    *before: Message,
) -> Stepped:
    """End a move, so that the build is in a status of the kernel, shelved, or in another cell."""
    host = build.host if status == "active" else None
    move = moves.closed(
        open_move(build), end, reason, host.host if host else "", host.root if host else "", now
    )
    build = moves.with_move(build, move, deadline=0.0)
    if status == "shelved" or status == "moved":
        build = trimmed(moves.held(build, status))
    else:
        build = trimmed(moves.of_kernel(build, status))
    return build, (*before, *repeated_move_end(build))


def arrived(build: Build, now: float, limits: AttemptLimits, end: MoveEnd = "done", why: str = "") -> Stepped:
    """End a move, as `end`, because the guest runs at its destination; order to destroy the guest at the
    source.
    """
    move = open_move(build)
    if move.source_is_held:
        build = source_left(build, now, limits)
    return close(build, end, why, now, "active")


def deleting(build: Build, reply_to: str | None, now: float, limits: AttemptLimits, why: str) -> Stepped:
    """Delete a build in any phase of its move, and destroy its guests at the destination and the source.
    `reply_to`: the client that waits for the deletion, or None.
    """
    move = open_move(build)
    build = end_phase(build, "given up", why, now)
    if move.source_is_held and move.phase != "resume":
        build = source_left(build, now, limits)
    build, emitted = close(build, "deleted", why, now, "deleting", builds.destroy(build))
    known = reply_to is None or reply_to in build.replies
    replies = build.replies if known else (*build.replies, reply_to)
    return replace(build, replies=replies, deadline=now + limits.delete_timeout), emitted


def source_left(build: Build, now: float, limits: AttemptLimits) -> Build:
    move = open_move(build)
    held_attempt = move.placed.attempt if move.placed.attempt != move.was else 0
    left = Leftover(move.was, move.source, now + limits.cleanup_timeout, holder_attempt=held_attempt)
    return leftovers.record(build, left)


def trimmed(build: Build) -> Build:
    """Return the build without the destination hosts of earlier moves that no guest uses."""
    first = len(build.hosts) - len(build.added_hosts)
    used = {build.at, *(left.at for left in build.leftovers)}
    stay = [at for at in range(first, len(build.hosts)) if at in used]
    if len(stay) == len(build.added_hosts):
        return build
    place = {at: at for at in range(first)} | {at: first + n for n, at in enumerate(stay)}
    return replace(
        build,
        added_hosts=tuple(build.hosts[at] for at in stay),
        at=place[build.at],
        leftovers=tuple(replace(left, at=place[left.at]) for left in build.leftovers),
    )


def failed_there(
    build: Build,
    outcome: Literal["failed", "timed out"],
    cause: str,
    now: float,
    limits: AttemptLimits,
    report: MoveReported | AgentReported | None = None,
) -> Stepped:
    """Try the next destination of a move after a failure, or return the build to the source if no destination
    may be tried. `report`: the agent's report of the failure; None if the agent sent no report.
    """
    retry = report is None or report.retry
    failed = builds.host_failed(build, cause, ours=retry)
    build = end_phase(build, outcome, cause, now)
    build = tried(build, outcome, cause, now)
    move = open_move(build)
    if outcome == "timed out" or (report is not None and report.leftover):
        build = leftovers.add(build, now, limits.cleanup_timeout, above=move.was)
    counted = sum(attempt.outcome != "refused" for attempt in move.attempts)
    if not retry:
        why = "aborted"
    elif counted >= limits.max_attempts:
        why = f"{counted} attempts failed, which is the limit"
    elif not build.untried:
        why = "no alternate is left"
    elif outcome == "timed out" and move.kind in moves.BUILT:  # the guest may still be built there
        return enter(build, "undo", now, limits, failed)
    else:
        return enter(build, "swap", now, limits, failed)
    return way_back(build, "error", why, now, limits, failed)


def way_back(
    build: Build, goal: MoveEnd, why: str, now: float, limits: AttemptLimits, *before: Message
) -> Stepped:
    """Begin to return a build to the source of its move, which will end as `goal`; guests at destinations are
    to be destroyed.
    """
    assert goal in ("error", "reverted", "aborted")
    move = open_move(build)
    chain = "; ".join(f"{attempt.host} {attempt.outcome}: {attempt.cause}" for attempt in move.attempts)
    cause = f"{why}: {chain}" if chain and goal == "error" else why
    move = replace(move, goal=goal, cause=cause[:MAX_CAUSE], may_run=move.may_run or move.kind in moves.BUILT)
    build = moves.with_move(build, move)
    undone = tuple(leftovers.destroy(build, left) for left in pending(build))
    if move.kind == "unshelve":
        return enter(build, "release", now, limits, *before, *undone)
    if not move.source_is_held and move.half != "arriving":
        return resume(build, now, limits, *before)
    if undone and (move.may_run or move.phase == "start"):
        return enter(build, "undo", now, limits, *before)
    return enter(build, phase_without_guest(build), now, limits, *before, *undone)


def phase_without_guest(build: Build) -> moves.Phase:
    """Return the phase that follows when no guest is left at a move's destination: `swap`, to claim the next
    destination; if the move has failed, `back`, or `release` if the build came from another cell.
    """
    move = open_move(build)
    if not move.goal:
        return "swap"
    return "release" if move.half == "arriving" else "back"


def returned(build: Build, now: float, limits: AttemptLimits, problem: str = "") -> Stepped:
    """Let a build run on its source host after a failed move; `problem`: why its resources there could not be
    claimed again, or "".
    """
    move = open_move(build)
    if problem:
        cause = f"{move.cause}; its room at {move.left} could not be claimed again: {problem}"[:MAX_CAUSE]
        move = replace(move, cause=cause, goal="error")
    build = moves.with_move(build, move, at=move.source, new_spec=move.before)
    if move.sent:
        return resume(build, now, limits)
    build = replace(build, attempt=move.was)
    assert move.goal
    return close(build, move.goal, move.cause, now, "active")


def resume(build: Build, now: float, limits: AttemptLimits, *before: Message) -> Stepped:
    """Order the agent of the source host to start the guest again, under a new attempt number."""
    move = open_move(build)
    number = move.highest + 1
    build = moves.with_move(build, replace(move, highest=number), attempt=number)
    return enter(build, "resume", now, limits, *before)


def open_move(build: Build) -> moves.BuildMove:
    move = moves.move_in_progress(build.parts)
    assert move is not None, f"{build.id} is in no move"
    return move


def waited_for(build: Build) -> Effects:
    """Return the messages of a move's current phase that await answers, to send or repeat them; () if the
    phase awaits an operator's decision.
    """
    move = open_move(build)
    match move.phase:
        case "prepare" | "send" | "start" | "resume" | "rebuild":
            return (_ordered(build, move, move.phase),)
        case "build":
            return (builds.order(build),)
        case "undo":
            return tuple(leftovers.destroy(build, left) for left in pending(build))
        case "destroy":
            return (builds.destroy(build),)
        case "verify":
            return ()
        case "swap" | "back" | "release":
            return (claim_or_release(build),)
        case "away" | "recall":
            return (moves.half_report(move),)


def overdue_report(build: Build) -> MoveReported:
    """Return the report that a move exceeded its time limit; the conductor sends it to itself."""
    move = open_move(build)
    fields = builds.attempt_fields(build)
    return MoveReported(**fields, move=move.id, phase="prepare", step=max(move.step, 1), outcome="overdue")


def removed_report(order: MoveOrdered, cause: str) -> MoveReported:
    """Return the report that ends an order for a removed agent."""
    names = ("move", "build", "phase", "step", "attempt", "cell", "agent", "root", "host")
    fields = {name: getattr(order, name) for name in names}
    return MoveReported(**fields, outcome="overdue", cause=cause, removed=True)


def move_progress(build: Build, refused: str = "", reply_to: str | None = None) -> MoveProgress:
    move = moves.last_move(build)
    assert move is not None
    return MoveProgress(
        move=move.id,
        build=build.id,
        cell=move.placed.cell,
        phase=move.shown,
        host=move.left if move.is_returning else move.host,
        percent=move.percent,
        refused=refused[:MAX_CAUSE],
        reply_to=move.placed.reply_to if reply_to is None else reply_to,
    )


def repeated_move_end(build: Build) -> Effects:
    """Return the end message of a build's last move, and the orders to destroy its guests left behind."""
    if (move := moves.last_move(build)) is None:  # a preempted instance was shelved without a move
        return ()
    return (*leftovers.destroy_all(build), *moves.end_messages(move))


def ended_before(build: Build) -> Effects:
    """Return the last messages of an ended move again, because the order of the move was delivered again."""
    destroying = (builds.destroy(build),) if build.status == "deleting" else ()
    return (*destroying, *repeated_move_end(build))


def pending(build: Build) -> list[Leftover]:
    """Return the guests left behind that must be destroyed before the guest at the source may run again."""
    move = open_move(build)
    first = move.first if move.kind in moves.BUILT else build.attempt
    return [left for left in build.leftovers if left.attempt >= first and not left.is_destroyed]


def claim_or_release(build: Build) -> ClaimRequested | ReleaseRequested:
    """Return the request that a move sends to placement: claim the next destination, claim the source, or
    release all; its phase decides.
    """
    move = open_move(build)
    if move.phase == "swap":
        return builds.claim_or_release(build)
    holder = builds.leftover_holder(build)
    if move.phase == "release":
        return ReleaseRequested(
            consumer=build.id, generation=build.generation, keep=holder, retire=SHELVED, revivable=True
        )  # retired as shelved, so that a redelivered boot request does not place it
    source, there = build.hosts[move.source].choice.allocations, build.host.choice.allocations
    shared = {provider: amounts for provider, amounts in source.items() if provider in there}
    held = Choice(allocations=source if move.afresh else shared)
    holder_of_source = None if move.afresh else builds.holder_consumer(build.id, move.placed.attempt)
    named = build.id, build.generation, build.spec
    return builds.claim_of(*named, held, keep=holder, take_over=holder_of_source)


def _ordered(build: Build, move: moves.BuildMove, phase: MovePhase) -> MoveOrdered:
    sends = phase == "send"
    host = build.hosts[move.source] if sends else build.host
    spec = (move.before or build.as_placed.spec) if sends else build.spec
    if move.kind in ("shelve", "rebuild") or move.kind in moves.BUILT:
        peer = ""
    else:
        peer = move.left if phase in ("prepare", "start") else move.host
    return MoveOrdered(
        **builds.attempt_fields(build, move.was if sends else build.attempt, host),
        move=move.id,
        kind=move.kind,
        phase=phase,
        step=move.step,
        was=move.was if phase in ("resume", "rebuild") else 0,
        peer=peer,
        force=sends and move.forced,
        spec=spec,
        allocations=sent_allocations(host.root, spec, host.choice.allocations),
        mappings=host.mappings,
    )

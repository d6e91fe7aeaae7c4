"""The phases of a move, their order, and the way back.

    migrate, resize   prepare → send → start [→ verify] → done
    live              prepare → send → start → done
    evacuate          build → done
    unshelve          build → done          shelve    send → destroy → release → done
    rebuild           rebuild → done

    prepare or build failed    → swap → prepare or build at the next destination; without one, the way back
    build timed out            → undo → swap → build at the next destination
    the way back               [undo →] back [→ resume] → as before

    to another cell            leaving (core/moving_out.py): [send →] away → moved; or resume → as before
                               arriving: as within a cell, without send; its way back [undo →] release → moved

A guest that is built again is not built elsewhere until the silent destination was destroyed, or was silent
about that too. The way back waits in `undo` only for a guest that may run at a destination or failed there.
The source resumes only if it received the order to send; otherwise its guest was never touched. The source's
allocations are taken over from the holder as they are: if the source was reshaped meanwhile, its agent knows
where its guest is, and the next BuildReshaped reports it.
"""

from typing import Literal

from msgspec.structs import replace

from bus.moves import MoveEnd
from bus.vocabulary import Message
from cell_conductor.core import build as say
from cell_conductor.core import leftovers
from cell_conductor.core.build import MAX_CAUSE, Build, Effects, Leftover, Status
from cell_conductor.core.limits import AttemptLimits
from cell_conductor.core.move import ASKING, BUILT, HALF, Over, Phase, closed, phase_over, verify_seconds
from cell_conductor.core.move_orders import (
    ended_again,
    how_it_stands,
    open_move,
    pending,
    waited_for,
)

Stepped = tuple[Build, Effects]

AWAY_SECONDS = 60.0  # after which the departure is reported again


def enter(build: Build, phase: Phase, now: float, limits: AttemptLimits, *said: Message) -> Stepped:
    """Begin a phase: return the given messages, the state of the move, and the phase's orders."""
    move = open_move(build)
    deadline = {
        "verify": now + verify_seconds(move) if verify_seconds(move) else 0.0,
        "undo": now + limits.delete_timeout,
        "destroy": now + limits.delete_timeout,
        "away": now + AWAY_SECONDS,
    }.get(phase, 0.0 if phase in (*ASKING, *HALF) else now + limits.build_timeout)
    orders = phase not in (*ASKING, *HALF, "undo", "destroy", "verify")
    move = replace(
        move,
        phase=phase,
        began=move.began if phase == move.phase else now,
        step=move.step + orders,
        percent=move.percent if phase == move.phase else 0,
        sent=move.sent or phase == "send",
        host=build.host.host if phase in ("prepare", "build") else move.host,
    )
    statuses: dict[Phase, Status] = {"verify": "verifying", "away": "moved"}
    status = statuses.get(phase, "moving")
    build = replace(build, move=move, status=status, deadline=deadline)
    return build, (*said, how_it_stands(build), *waited_for(build))


def over(build: Build, outcome: Over, cause: str, now: float) -> Build:
    """Record the end of the current phase."""
    move = open_move(build)
    sends = move.phase == "send"
    host = build.hosts[move.source] if sends else build.host
    return replace(build, move=phase_over(move, host.host, outcome, cause, now))


def tried(build: Build, outcome: Literal["built", "failed", "timed out"], cause: str, now: float) -> Build:
    """Record the end of the attempt at this destination."""
    move = open_move(build)
    attempt = say.attempt_over(build, outcome, cause, now)
    return replace(build, move=replace(move, attempts=(*move.attempts, attempt)))


def close(build: Build, end: MoveEnd, reason: str, now: float, status: Status, *said: Message) -> Stepped:
    """End the move."""
    host = build.host if status == "active" else None
    move = closed(open_move(build), end, reason, host.host if host else "", host.root if host else "", now)
    build = trimmed(replace(build, move=move, status=status, deadline=0.0))
    return build, (*said, *ended_again(build))


def arrived(build: Build, now: float, limits: AttemptLimits, end: MoveEnd = "done", why: str = "") -> Stepped:
    """End the move at the destination; the leftover at the source is destroyed."""
    move = open_move(build)
    if move.kept:
        build = source_left(build, now, limits)
    return close(build, end, why, now, "active")


def deleting(build: Build, reply_to: str | None, now: float, limits: AttemptLimits, why: str) -> Stepped:
    """Delete the build, at any phase: destroy and release its own place; the source becomes a leftover."""
    move = open_move(build)
    build = over(build, "given up", why, now)
    if move.kept and move.phase != "resume":
        build = source_left(build, now, limits)
    build, said = close(build, "deleted", why, now, "deleting", say.destroy(build))
    known = reply_to is None or reply_to in build.replies
    replies = build.replies if known else (*build.replies, reply_to)
    return replace(build, replies=replies, deadline=now + limits.delete_timeout), said


def source_left(build: Build, now: float, limits: AttemptLimits) -> Build:
    move = open_move(build)
    kept = move.placed.attempt if move.placed.attempt != move.was else 0
    return leftovers.left_at(build, Leftover(move.was, move.source, now + limits.cleanup_timeout, kept=kept))


def trimmed(build: Build) -> Build:
    """Return the build without hosts of earlier moves that no message mentions any more."""
    first = len(build.hosts) - len(build.moved)
    used = {build.at, *(left.at for left in build.leftovers)}
    stay = [at for at in range(first, len(build.hosts)) if at in used]
    if len(stay) == len(build.moved):
        return build
    place = {at: at for at in range(first)} | {at: first + n for n, at in enumerate(stay)}
    return replace(
        build,
        moved=tuple(build.hosts[at] for at in stay),
        at=place[build.at],
        leftovers=tuple(replace(left, at=place[left.at]) for left in build.leftovers),
    )


def failed_there(
    build: Build,
    outcome: Over,
    cause: str,
    now: float,
    limits: AttemptLimits,
    *,
    left: bool = False,
    retry: bool = True,
) -> Stepped:
    """Try the next destination, or go back."""
    told = say.host_failed(build, cause, ours=retry)
    build = over(build, outcome, cause, now)
    build = tried(build, "timed out" if outcome == "timed out" else "failed", cause, now)
    move = open_move(build)
    if left:
        build = leftovers.leave_behind(build, now, limits.cleanup_timeout, above=move.was)
    counted = sum(attempt.outcome != "refused" for attempt in move.attempts)
    if not retry:
        why = "aborted"
    elif counted >= limits.max_attempts:
        why = f"{counted} attempts failed, no more are allowed"
    elif not build.spares:
        why = "no alternate is left"
    elif outcome == "timed out" and move.kind in BUILT:  # it may still be built there
        return enter(build, "undo", now, limits, told)
    else:
        return enter(build, "swap", now, limits, told)
    build, said = way_back(build, "error", why, now, limits)
    return build, (told, *said)


def way_back(
    build: Build, goal: MoveEnd, why: str, now: float, limits: AttemptLimits, *said: Message
) -> Stepped:
    """Restore the state before the move; a guest at the destination is a leftover by now."""
    assert goal in ("error", "reverted", "aborted")
    move = open_move(build)
    chain = "; ".join(f"{attempt.host} {attempt.outcome}: {attempt.cause}" for attempt in move.attempts)
    cause = f"{why}: {chain}" if chain and goal == "error" else why
    runs = move.kind in BUILT
    move = replace(move, goal=goal, cause=cause[:MAX_CAUSE], may_run=move.may_run or runs)
    build = replace(build, move=move)
    if not move.kept and (move.half != "arriving" or move.kind == "unshelve"):
        return _back_without_a_claim(build, now, limits, *said)
    undone = tuple(say.destroy_left(build, left) for left in pending(build))
    if undone and (move.may_run or move.phase == "start"):
        return enter(build, "undo", now, limits, *said)
    return enter(build, _nothing_runs(build), now, limits, *said, *undone)


def _nothing_runs(build: Build) -> Phase:
    """Return the phase after no guest is at the destination: the next destination, or the source."""
    move = open_move(build)
    if not move.goal:
        return "swap"
    return "release" if move.half == "arriving" else "back"


def _back_without_a_claim(build: Build, now: float, limits: AttemptLimits, *said: Message) -> Stepped:
    move = open_move(build)
    if move.kind == "unshelve":
        undone = tuple(say.destroy_left(build, left) for left in pending(build))
        return enter(build, "release", now, limits, *said, *undone)
    return resume(build, now, limits, *said)


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
        return build, (how_it_stands(build, refused=cause), *waited_for(build))
    return enter(over(build, "timed out", "no answer", now), _nothing_runs(build), now, limits)


def undone(build: Build, now: float, limits: AttemptLimits) -> Stepped:
    if pending(build):
        return build, ()
    return enter(over(build, "done", "", now), _nothing_runs(build), now, limits)


def returned(build: Build, now: float, limits: AttemptLimits, problem: str = "") -> Stepped:
    """Continue with the source's resources, or with the reason why they are lost."""
    move = open_move(build)
    if problem:
        cause = f"{move.cause}; its room at {move.left} could not be had back: {problem}"[:MAX_CAUSE]
        move = replace(move, cause=cause, goal="error")
    build = replace(build, at=move.source, became=move.before, move=move)
    if move.sent:
        return resume(build, now, limits)
    build = replace(build, attempt=move.was)
    assert move.goal
    return close(build, move.goal, move.cause, now, "active")


def resume(build: Build, now: float, limits: AttemptLimits, *said: Message) -> Stepped:
    """Start the guest at its source under a new attempt number."""
    move = open_move(build)
    number = move.highest + 1
    build = replace(build, attempt=number, move=replace(move, highest=number))
    return enter(build, "resume", now, limits, *said)


def resumed(build: Build, problem: str, now: float) -> Stepped:
    move = open_move(build)
    assert move.goal
    if problem:
        cause = f"{move.cause}; it did not go on at {move.left}: {problem}"[:MAX_CAUSE]
        return close(build, "error", cause, now, "active")
    return close(build, move.goal, move.cause, now, "active")

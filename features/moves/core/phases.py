"""The state of a move in its cell and its messages; the phases of a move, their order, and the way back.

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

As soon as a move begins, the build's consumer holds the destination's resources, and the build has the
attempt number of the destination's guest. To return the build if the move fails, the move's record has the
source host, the attempt number of the source's guest, and the build's former spec (flavor and image).
"""

from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from bus import parts
from bus.agent_builds import sent_allocations
from bus.claims import Choice, ClaimRequested, ReleaseRequested
from bus.messages import AgentReported, Attempt
from bus.requests import BuildSpec
from bus.vocabulary import Message, Value, cause_of, seconds_of
from cell_conductor.extension import (
    AttemptLimits,
    Build,
    BuildParts,
    Effects,
    Leftover,
    Status,
    Stepped,
    builds,
    leftovers,
)
from features.moves.messages import (
    SHELVED,
    WAY_BACK,
    HandoverProgress,
    HandoverReported,
    MoveEnd,
    MoveEnded,
    MoveKind,
    MoveOrdered,
    MovePhase,
    MovePlaced,
    MoveProgress,
    MoveReported,
    MoveStands,
    PhaseOver,
)

# The state of a move, and the messages about it.


Phase = Literal[
    "prepare",  # the destination's agent prepares for the guest
    "send",  # the source's agent stops and copies the guest, copies it while it runs, or makes its image
    "start",  # the destination's agent starts the guest
    "build",  # the destination's agent builds the guest again
    "rebuild",  # the agent replaces the guest on the same host
    "verify",  # the guest runs at the destination until the move is confirmed or reverted
    "swap",  # placement must claim the next destination
    "undo",  # agents destroy guests that may run at destinations
    "back",  # placement must claim the source's resources for the build again
    "resume",  # the source's agent starts the guest again
    "destroy",  # the source's agent destroys the guest of the shelved instance
    "release",  # placement must release the build's resources
    "away",  # another cell has the build, and decides how the move continues
    "recall",  # the move was cancelled: the scheduler must claim the source's resources again
]
# what is shown of a build that its move has: in a move, in another cell, or shelved until the next move
HeldStatus = Literal["moving", "verifying", "shelved", "moved"]
PhaseOutcome = Literal["done", "failed", "timed out", "given up"]
HalfOutcome = Literal["ready", "failed", "arrived", "back", "deleted", "delete"]

# types of moves in which a holder consumer has the source's resources
KEPT: tuple[MoveKind, ...] = ("migrate", "resize", "live", "evacuate")
BUILT: tuple[MoveKind, ...] = ("evacuate", "unshelve")  # moves that build the guest anew
HALF: tuple[Phase, ...] = ("away", "recall")  # phases of a move between cells that wait for the scheduler
ASKING: tuple[Phase, ...] = ("swap", "back", "release")  # phases that wait for placement
# phases in which the guest is at the source
AT_SOURCE: tuple[Phase, ...] = ("prepare", "send", "swap", "back", "resume")


class BuildMove(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a move of an instance to another host, such as a migration: the move in progress or, if
    none is, the last one.
    """

    placed: MovePlaced  # the scheduler's order, without the decision record
    phase: Phase
    since: float
    began: float  # when the phase began
    step: int = 0  # number of the last order; each order of a move of this build has a higher one
    first: int = 1  # number of the move's first attempt
    highest: int = 1  # highest attempt number so far
    source: int = 0  # index of the source in `Build.hosts`, until the move ends
    left: str = ""  # name of the source host
    was: int = 0  # attempt number of the guest at the source; 0: no guest
    before: BuildSpec | None = None  # the build's spec before the move; None: as placed
    host: str = ""  # name of the destination host
    percent: int = 0
    sent: bool = False  # True if the source was ordered to send the guest, which may have stopped
    forced: bool = False
    may_run: bool = False  # True if a guest left behind at a destination may run
    afresh: bool = False  # True if no consumer holds the source, so its resources must be claimed anew
    # how the move will end when the build is back at its source or deleted; empty: it has not failed
    goal: Literal["", "error", "reverted", "aborted", "deleted"] = ""
    cause: str = ""
    end: Literal["", "done", "reverted", "aborted", "error", "deleted"] = ""  # never changed once set
    ended: float = 0.0
    at_host: str = ""  # name of the instance's host when the move ended
    at_root: str = ""
    phases: tuple[PhaseOver, ...] = ()
    attempts: tuple[Attempt, ...] = ()  # finished attempts at destinations
    half: Literal["", "leaving", "arriving"] = ""  # of a move between cells: this cell's part
    to_cell: str = ""  # name of the destination cell, if the build leaves this cell
    silent: bool = False  # True if the other cell reports the end of the move

    @property
    def id(self) -> str:
        return self.placed.move

    @property
    def kind(self) -> MoveKind:
        return self.placed.kind

    @property
    def is_open(self) -> bool:
        return not self.end

    @property
    def source_is_held(self) -> bool:
        """Return whether a holder consumer in this cell holds the resources of the move's source."""
        return self.kind in KEPT and self.half != "arriving"

    @property
    def asks(self) -> str:
        """Return a name for the claim or release that the move requested from placement. The event of the
        answer has this name, so that a late answer to an earlier request is recognized.
        """
        return f"{self.phase} afresh" if self.afresh else self.phase

    @property
    def leaves(self) -> bool:
        """Return whether the build is leaving its cell, or has left it and may return."""
        return self.half == "leaving" and (self.phase == "send" or self.phase in HALF)

    @property
    def elsewhere(self) -> str:
        """Return the name of the other cell if the build of this move is there now; "" if it is here."""
        if self.half == "leaving":
            return self.to_cell if self.silent or (self.is_open and self.phase == "away") else ""
        return self.placed.out_of if self.silent else ""

    @property
    def is_returning(self) -> bool:
        """Return whether the move failed or was cancelled, and the build returns to the source host."""
        return self.phase in WAY_BACK and (self.phase != "undo" or bool(self.goal))

    @property
    def shown(self) -> str:
        """Return the state to show to users: the phase of a move in progress, or an ended move's result."""
        if self.end:
            return self.end
        if self.phase == "undo":
            return {"": "swap", "reverted": "revert", "aborted": "abort"}.get(self.goal, "undo")
        return self.phase


class MovePart(msgspec.Struct, frozen=True):
    """The state that the feature keeps about a build in `Build.parts`."""

    move: BuildMove | None = None  # current or last move


class MoveImpossible(msgspec.Struct, frozen=True):
    """The event that this cell cannot carry out a move that the scheduler placed, and must undo its claim."""

    placed: MovePlaced
    why: str


class MoveEndedBefore(msgspec.Struct, frozen=True):
    """The event that the scheduler's order of an ended move, which is not the build's last, is repeated."""

    move: BuildMove
    again: MovePlaced  # the repeated order


def last_move(build: Build | None) -> BuildMove | None:
    """Return the current or last move of a build."""
    state = build.parts.get(MovePart) if build is not None else None
    return state.move if state is not None else None


def move_in_progress(parts: BuildParts) -> BuildMove | None:
    """Return the move that a build with these parts is in."""
    state = parts.get(MovePart)
    return state.move if state is not None and state.move is not None and state.move.is_open else None


def with_move(build: Build, move: BuildMove, **changes: Any) -> Build:
    """Return a build with a new state of its move, and other changed fields."""
    return replace(build, parts=build.parts.having(MovePart(move)), **changes)


def held(build: Build, status: HeldStatus, **changes: Any) -> Build:
    """Return a build that its move has, with the status to show."""
    parts = build.parts.having(MovePart(last_move(build)))
    return replace(build, status="held", held_as=status, parts=parts, **changes)


def of_kernel(build: Build, status: Status, **changes: Any) -> Build:
    """Return a build that the kernel has again, in a status."""
    if build.held_as and last_move(build) is None:
        changes["parts"] = build.parts.without(MovePart)
    return replace(build, status=status, held_as="", **changes)


def has_lost_claim(placed: MovePlaced) -> bool:
    """Return whether a move's order has no destination, because placement released the move's claim before
    the scheduler published the order.
    """
    return placed.chosen is None and placed.kind in (*KEPT, *BUILT)


def without_record(placed: MovePlaced) -> MovePlaced:
    """Return a move's order without its decision record and the build's request, which are not stored."""
    return replace(placed, booted=None, decision=replace(placed.decision, record=None))


def closed(move: BuildMove, end: MoveEnd, reason: str, host: str, root: str, now: float) -> BuildMove:
    """Return the move with its end, reason, and the host on which it ended."""
    return replace(move, end=end, ended=now, cause=cause_of(reason), at_host=host, at_root=root)


def refused_move(placed: MovePlaced, end: MoveEnd, why: str, now: float) -> BuildMove:
    """Return the record of a move that was refused, with the given end and reason `why`."""
    host = placed.chosen.host if placed.chosen else ""
    move = BuildMove(placed=without_record(placed), phase="prepare", since=now, began=now, host=host)
    return closed(move, end, why, "", "", now)


def ended(move: BuildMove) -> MoveEnded:
    """Return the message `MoveEnded` about an ended move; repeated calls return the same message."""
    assert move.end, f"move {move.id} is not over"
    return MoveEnded(
        **_named_fields(move),
        end=move.end,
        host=move.at_host,
        root=move.at_root,
        reply_to=move.placed.reply_to,
        plan=move.placed.plan,
    )


def _named_fields(move: BuildMove) -> dict[str, Any]:
    fields = {"reason": move.cause, "phases": move.phases, "attempts": move.attempts}
    placed = {name: getattr(move.placed, name) for name in ("move", "build", "kind", "cell", "decision")}
    return placed | fields


def half_of(
    move: MovePlaced | HandoverProgress,
    half: Literal["leaving", "arriving"],
    outcome: HalfOutcome,
    **more: Any,
) -> HandoverReported:
    """Return the message in which a cell reports its part of a move between cells to the scheduler: the
    source cell the part `leaving`, the destination `arriving`.
    """
    return HandoverReported(
        move=move.move, build=move.build, cell=move.cell, half=half, outcome=outcome, **more
    )


def half_report(move: BuildMove) -> HandoverReported:
    """Return the message in which this cell reports its part of a move between cells to the scheduler.
    Repeated calls return the same message.
    """
    outcome: HalfOutcome
    if move.half == "leaving":
        outcome = "ready" if move.phase == "away" else "deleted" if move.goal == "deleted" else "failed"
    else:
        outcome = "deleted" if move.end == "deleted" else "back" if move.silent else "arrived"
    assert move.half, f"move {move.id} stays in its cell"
    return half_of(
        move.placed,
        move.half,
        outcome,
        above=move.highest,
        steps=move.step,
        end=move.end or move.goal or "error",
        cause=move.cause,
        phases=move.phases if move.half == "arriving" else (),
        attempts=move.attempts,
    )


def end_messages(move: BuildMove) -> tuple[Message, ...]:
    """Return the messages that report a move's end. Subscribers get one unless another cell publishes it. If
    the move came from another cell, the scheduler gets one, too.
    """
    emitted: tuple[Message, ...] = () if move.silent else (ended(move),)
    return (*emitted, half_report(move)) if move.half == "arriving" else emitted


def move_state(move: BuildMove) -> MoveStands:
    """Return the state of a move as queries report it."""
    return MoveStands(
        **_named_fields(move),
        phase=move.shown,
        source=move.left,
        host=move.host,
        at=move.at_host,
        percent=move.percent,
        since=move.since,
        ended=move.ended,
        note=move.placed.note,
        in_cell=move.elsewhere,
        content=move.placed.content,
    )


encode_move = parts.stored_encoder().encode
decode_move = parts.stored_decoder(BuildMove).decode
decode_placed = parts.stored_decoder(MovePlaced).decode


# The phases: how each begins and ends, and which messages it waits for.


# seconds after which a report to the scheduler that a build has left the cell is repeated
AWAY_SECONDS = 60.0


def enter(build: Build, phase: Phase, now: float, limits: AttemptLimits, *before: Message) -> Stepped:
    """Begin a phase of a move; return the build and its messages: the given messages `before`, then the
    messages of the phase.
    """
    move = open_move(build)
    deadline = {
        "verify": now + seconds_of(move.placed.verify_for) if move.placed.verify_for else 0.0,
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
    statuses: dict[Phase, HeldStatus] = {"verify": "verifying", "away": "moved"}
    build = held(with_move(build, move), statuses.get(phase, "moving"), deadline=deadline)
    return build, (*before, move_progress(build), *waited_for(build))


def end_phase(build: Build, outcome: PhaseOutcome, cause: str, now: float) -> Build:
    """Record the end of the current phase."""
    move = open_move(build)
    sends = move.phase == "send"
    host = build.hosts[move.source] if sends else build.host
    over = PhaseOver(move.phase, host.host, outcome, cause_of(cause), move.began, now)
    return with_move(build, replace(move, phases=(*move.phases, over)))


def tried(build: Build, outcome: Literal["built", "failed", "timed out"], cause: str, now: float) -> Build:
    """Record the outcome of the move's attempt at its current destination in the move's history."""
    move = open_move(build)
    attempt = builds.attempt_over(build.host, outcome, cause, build.started, now)
    return with_move(build, replace(move, attempts=(*move.attempts, attempt)))


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
    move = closed(open_move(build), end, reason, host.host if host else "", host.root if host else "", now)
    build = with_move(build, move, deadline=0.0)
    if status == "shelved" or status == "moved":
        build = trimmed(held(build, status))
    else:
        build = trimmed(of_kernel(build, status))
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
    """Record the guest at the source as left behind: its resources stay allocated until it is destroyed."""
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
    elif outcome == "timed out" and move.kind in BUILT:  # the guest may still be built there
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
    move = replace(move, goal=goal, cause=cause_of(cause), may_run=move.may_run or move.kind in BUILT)
    build = with_move(build, move)
    undone = tuple(leftovers.destroy(build, left) for left in pending(build))
    if move.kind == "unshelve":
        return enter(build, "release", now, limits, *before, *undone)
    if not move.source_is_held and move.half != "arriving":
        return resume(build, now, limits, *before)
    if undone and (move.may_run or move.phase == "start"):
        return enter(build, "undo", now, limits, *before)
    return enter(build, phase_without_guest(build), now, limits, *before, *undone)


def phase_without_guest(build: Build) -> Phase:
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
        cause = cause_of(f"{move.cause}; its room at {move.left} could not be claimed again: {problem}")
        move = replace(move, cause=cause, goal="error")
    build = with_move(build, move, at=move.source, new_spec=move.before)
    if move.sent:
        return resume(build, now, limits)
    build = replace(build, attempt=move.was)
    assert move.goal
    return close(build, move.goal, move.cause, now, "active")


def resume(build: Build, now: float, limits: AttemptLimits, *before: Message) -> Stepped:
    """Order the agent of the source host to start the guest again, under a new attempt number."""
    move = open_move(build)
    number = move.highest + 1
    build = with_move(build, replace(move, highest=number), attempt=number)
    return enter(build, "resume", now, limits, *before)


def open_move(build: Build) -> BuildMove:
    """Return the move in progress; an error if there is none."""
    move = move_in_progress(build.parts)
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
            return (half_report(move),)


def overdue_report(build: Build) -> MoveReported:
    """Return the report that a move exceeded its time limit; the conductor sends it to itself."""
    move = open_move(build)
    fields = builds.attempt_fields(build)
    return MoveReported(**fields, move=move.id, phase="prepare", step=max(move.step, 1), outcome="overdue")


def removed_report(order: MoveOrdered, cause: str) -> MoveReported:
    """Return the report that ends an order for a removed agent."""
    return MoveReported(**order.phase_fields(), outcome="overdue", cause=cause, removed=True)


def move_progress(build: Build, refused: str = "", reply_to: str | None = None) -> MoveProgress:
    """Return the message about the state of the last move."""
    move = last_move(build)
    assert move is not None
    return MoveProgress(
        move=move.id,
        build=build.id,
        cell=move.placed.cell,
        phase=move.shown,
        host=move.left if move.is_returning else move.host,
        percent=move.percent,
        refused=cause_of(refused),
        reply_to=move.placed.reply_to if reply_to is None else reply_to,
    )


def repeated_move_end(build: Build) -> Effects:
    """Return the end message of a build's last move, and the orders to destroy its guests left behind."""
    if (move := last_move(build)) is None:  # a preempted instance was shelved without a move
        return ()
    return (*leftovers.destroy_all(build), *end_messages(move))


def ended_before(build: Build) -> Effects:
    """Return the last messages of an ended move again, because the order of the move was delivered again."""
    destroying = (builds.destroy(build),) if build.status == "deleting" else ()
    return (*destroying, *repeated_move_end(build))


def pending(build: Build) -> list[Leftover]:
    """Return the guests left behind that must be destroyed before the guest at the source may run again."""
    move = open_move(build)
    first = move.first if move.kind in BUILT else build.attempt
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
    choice = Choice(allocations=source if move.afresh else shared)
    holder_of_source = None if move.afresh else builds.holder_consumer(build.id, move.placed.attempt)
    named = build.id, build.generation, build.spec
    return builds.claim_of(*named, choice, keep=holder, take_over=holder_of_source)


def _ordered(build: Build, move: BuildMove, phase: MovePhase) -> MoveOrdered:
    sends = phase == "send"
    host = build.hosts[move.source] if sends else build.host
    spec = (move.before or build.as_placed.spec) if sends else build.spec
    if move.kind in ("shelve", "rebuild") or move.kind in BUILT:
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

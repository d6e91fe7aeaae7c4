"""Messages about moves of existing instances: requests, placements, orders for each phase, and reports.

A scheduler begins a move with one claim: the build's consumer gets the allocations at the destination, and
its former allocations go to a holder consumer (`bus.claims.holder_consumer`). The cell's conductor does the
rest.
"""

from dataclasses import replace
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, field, structs

from bus import topics
from bus.acts import BOTH, Act, Requested, Target, allocations_of, sent
from bus.decisions import Decision
from bus.feature import MessagesPart
from bus.invalid_requests import InvalidRequest, RequestKind
from bus.messages import Attempt, BuildPlaced, GuestMessage, GuestOrder, Selection
from bus.parts import DecisionPart, DecisionParts, MoveParts, PlanPart, PlanParts, none_of
from bus.projects import BuildPlace, NotAllowed, ProjectMember, ProjectsFound, check_filtered
from bus.queries import DecisionFound
from bus.requests import BuildSpec, Flavor, Image
from bus.resources import FindProviders, ProvidersFound
from bus.topics import ANYONE, Query, Topic, outcome
from bus.vocabulary import (
    Allocations,
    Amount,
    Cause,
    CellName,
    CellOrNone,
    Compact,
    Count,
    FreeText,
    HostName,
    Id,
    InstanceId,
    LargeMap,
    LongList,
    Message,
    Note,
    Number,
    ObjectKind,
    Ordinal,
    ReplyTo,
    Seconds,
    ShortList,
    Text,
    Value,
    Wait,
    Whole,
    Word,
    names,
    names_new,
)

MoveKind = Literal["migrate", "resize", "live", "evacuate", "shelve", "unshelve", "rebuild"]
MovePhase = Literal["prepare", "send", "start", "resume", "rebuild"]  # orders to an agent
MoveEnd = Literal["done", "reverted", "aborted", "error", "deleted"]
Steering = Literal["confirm", "revert", "abort", "force"]
# the plan, or the maintenance controller's work, that requested the move; empty: none
MovePlan = Literal["", "make_room", "rebalance", "undo", "maintenance", "evacuation"]

SHELVED = "shelved"  # why a shelved instance is retired
# Phases while a move is undone.
WAY_BACK = ("undo", "back", "resume", "recall", "revert", "abort")

# types of moves that need a destination
SEEKING: tuple[MoveKind, ...] = ("migrate", "resize", "live", "evacuate", "unshelve")


MOVE_KIND = ObjectKind("move", "worker", "the cell's record of the move, features/moves/messages.py")
MoveId = Annotated[Id, names(MOVE_KIND)]
NewMoveId = Annotated[Id, names_new(MOVE_KIND)]


class MoveRequested(Message, frozen=True, kw_only=True):
    """A request to move or change this instance. Requests with the same move id are carried out once."""

    move: NewMoveId
    build: InstanceId
    kind: MoveKind
    cell: CellOrNone = ""  # cell of the instance; empty: the scheduler finds it
    to_cell: CellOrNone = ""  # destination cell; empty: the same cell
    flavor: Flavor | None = None  # resize: the new flavor
    image: Image | None = None  # rebuild: the new image
    wanted_host: HostName = ""  # name or root of the only host to consider; filters apply
    forced_host: HostName = ""  # name or root of the host to use, even if filters reject it
    ignore_hosts: ShortList[HostName] = ()
    same_host: bool = False  # resize: may stay on the host if it has capacity for old and new allocations
    verify: bool = False  # migrate, resize: at the end, wait until an operator confirms or reverts the move
    verify_for: Wait = ""  # time after which the move is confirmed automatically; empty: never
    alternates: Annotated[int, Meta(ge=0, le=10)] = 2
    reply_to: ReplyTo = ""
    note: Note = ""  # why the client requests the move
    plan: MovePlan = ""
    # expected host of the instance, by name or root: refused if the instance is not there; empty: any host
    source: HostName = ""
    parts: MoveParts = none_of(MoveParts)
    strict: bool = False  # as in BuildRequested
    unknown_fields: ShortList[Note] = ()


class MoveMessage(Message, frozen=True, kw_only=True):
    """The base class of what is published or recorded about a move of an instance."""

    move: Id
    build: Id


class CellMove(MoveMessage, frozen=True, kw_only=True):
    """The base class of what is published or recorded about a move that began in this cell."""

    kind: MoveKind
    cell: Word


class MovePlaced(CellMove, frozen=True, kw_only=True):
    """The destination that was claimed for a move. The alternates are in the same cell, and not claimed."""

    # attempt number of the guest to move; 0: there is no guest (unshelve)
    attempt: Count
    generation: Ordinal | None  # generation of the build's consumer after the claim; None: no allocations
    # None: no destination (shelve, or the claim was released before this message was published)
    chosen: Selection | None = None
    alternates: LongList[Selection] = ()
    spec: BuildSpec  # flavor and image after the move
    verify: bool = False
    verify_for: Wait = ""
    decision: Decision = Decision()
    reply_to: ReplyTo = ""
    shared: Allocations = field(default_factory=dict)  # the source's allocations at pools of both hosts
    # For a move from another cell: that cell, the original placement, and the last attempt and step there.
    out_of: Text = ""
    booted: BuildPlaced | None = None
    above: Count = 0
    steps: Count = 0
    note: Cause = ""
    plan: MovePlan = ""
    content: Text = ""  # digest of the request's content; empty: unknown


class MoveRefused(MoveMessage, frozen=True, kw_only=True):
    """A move is refused, and nothing changed: no host was found, or the instance's state forbids it."""

    kind: MoveKind
    reason: Cause
    code: Text = ""  # code of the reason (docs/reasons.md)
    decision: Decision = Decision()
    reply_to: ReplyTo = ""


class MoveConflict(Message, frozen=True, kw_only=True):
    """A repeated move request is refused, because the first request with its id has other content. The first
    move does not change.
    """

    move: Id
    build: Id  # the instance that the repeated request names; the first move does not end with this message
    cell: Word  # the cell that noticed the conflict; "-": a scheduler
    reason: Cause
    fields: ShortList[Text] = ()  # names of fields that differ, as far as they are known
    reply_to: ReplyTo = ""


class PhaseOver(Compact, frozen=True):
    """The end of one phase of a move on one host: its result and time."""

    phase: Text
    host: Text
    outcome: Literal["done", "failed", "timed out", "given up"]
    cause: Cause = ""
    began: Number = 0.0
    ended: Number = 0.0


class MoveProgress(MoveMessage, frozen=True, kw_only=True):
    """The new state of a move after each change, or why an operator's MoveSteered was refused."""

    cell: Word
    phase: Text  # current phase of an order, or verify, confirm, revert, abort
    host: Text = ""  # destination, or source while the move is undone; empty: no destination (shelve)
    percent: Annotated[int, Meta(ge=0, le=100)] = 0
    refused: Cause = ""  # the refused MoveSteered, and the reason
    reply_to: ReplyTo = ""
    code: Text = ""  # code of the refusal (docs/reasons.md)
    notes: ShortList[Cause] = ()  # fields of the MoveSteered that are not known


class MoveEnded(CellMove, frozen=True, kw_only=True):
    """A move has ended. The instance is on `host`, unless it was deleted or shelved."""

    end: MoveEnd
    host: Text = ""
    root: Text = ""
    reason: Cause = ""
    phases: LongList[PhaseOver] = ()
    attempts: LongList[Attempt] = ()  # finished attempts on destination hosts
    decision: Decision = Decision()
    reply_to: ReplyTo = ""
    plan: MovePlan = ""


class MoveSteered(Message, frozen=True, kw_only=True):
    """An operator's request about a move in progress: confirm, revert or abort the move, or force a live
    migration to end.
    """

    move: MoveId
    build: InstanceId
    cell: CellName
    to: Steering
    reply_to: ReplyTo = ""
    strict: bool = False  # as in BuildRequested
    unknown_fields: ShortList[Note] = ()


# Messages of moves between cells: scheduler ↔ conductors of both cells.


class HandoverProgress(CellMove, frozen=True, kw_only=True):
    """A scheduler's message to the source cell of a move between cells: `leave` starts the handover of the
    instance; `done`, `back` and `deleted` report how the destination cell ended the move.
    """

    to_cell: Word
    say: Literal["leave", "done", "back", "deleted"]
    # attempt number of the guest at the source; 0: there is no guest (unshelve)
    attempt: Count
    host: Text = ""  # destination
    spec: BuildSpec  # flavor and image after the move
    # The following fields are for "back": the move was undone, and the former allocations are restored.
    generation: Ordinal | None = None  # generation of the build's consumer
    above: Count = 0  # the last attempt and step in the other cell
    steps: Count = 0
    end: MoveEnd = "error"  # how the move ends
    cause: Cause = ""
    problem: Cause = ""  # why the former allocations could not be restored
    phases: LongList[PhaseOver] = ()  # phases in the other cell
    attempts: LongList[Attempt] = ()
    decision: Decision = Decision()
    reply_to: ReplyTo = ""


class HandoverReported(MoveMessage, frozen=True, kw_only=True):
    """The state of one cell's part of a move between cells, republished until the other cell confirms it."""

    cell: Word
    half: Literal["leaving", "arriving"]
    # source cell: ready, failed, deleted; destination cell: arrived, back, deleted; both cells: delete, if a
    # client has requested the deletion
    outcome: Literal["ready", "failed", "arrived", "back", "deleted", "delete"]
    above: Count = 0  # the last attempt and step in this cell
    steps: Count = 0
    end: MoveEnd = "error"  # with failed and back: how the move ends
    cause: Cause = ""
    phases: LongList[PhaseOver] = ()
    attempts: LongList[Attempt] = ()
    reply_to: ReplyTo = ""  # with delete: `reply_to` of the client's request


# Inside a cell: conductor ↔ agents


class MoveOrdered(GuestOrder, frozen=True, kw_only=True):
    """An order to an agent to carry out this phase of a move on this host, for the guest of this attempt; in
    the phases resume and rebuild, `attempt` is the new attempt of the guest.

    `step` grows with every order of a build, over all its moves. An agent ignores orders with a lower step
    than its last order of the build on that host.
    """

    move: Id
    kind: MoveKind
    phase: MovePhase
    step: Amount
    was: Count = 0  # resume, rebuild: the former attempt of the guest
    peer: Text = ""  # the other host of the move
    force: bool = False  # send: the guest may be paused to finish the copy

    def phase_fields(self) -> dict[str, Any]:
        """Return the fields that the report about this order has in common with the order, by name."""
        return {**self.guest_fields(), "move": self.move, "phase": self.phase, "step": self.step}


class MoveReported(GuestMessage, frozen=True, kw_only=True):
    """An agent's report about a phase of a move."""

    move: Id
    phase: MovePhase
    step: Amount
    # overdue: made by the conductor itself, because the agent has not reported in time
    outcome: Literal["done", "failed", "progress", "overdue"]
    removed: bool = False  # with overdue: immediately, because an operator has removed the agent
    percent: Annotated[int, Meta(ge=0, le=100)] = 0
    leftover: bool = False  # failed: parts of the guest may still exist
    retry: bool = True  # failed: whether another host may succeed
    cause: Cause = ""


class MoveStands(CellMove, frozen=True, kw_only=True):
    """The state of a move, from the records of its cell."""

    phase: Text  # current phase, or how the move ended
    source: Text = ""
    host: Text = ""  # the destination
    at: Text = ""  # after the end: host of the instance; empty: no host
    percent: Whole = 0
    since: Seconds = 0.0
    ended: Seconds = 0.0
    reason: Cause = ""
    phases: LongList[PhaseOver] = ()
    attempts: LongList[Attempt] = ()
    decision: Decision = Decision()
    note: Cause = ""
    in_cell: Text = ""  # the other cell of a move between cells: query it for its part; empty: one cell only
    content: Text = ""  # digest of the request's content; empty: unknown

    @property
    def towards(self) -> str:
        """Return the destination host of a move, or its source host while the move is being undone."""
        return self.source if self.phase in WAY_BACK else self.host


class FindMoves(Message, frozen=True, kw_only=True):
    """A query for a page of the moves that one cell has recorded and that meet all given conditions, newest
    first.
    """

    cell: CellName
    moves: Annotated[tuple[MoveId, ...], Meta(max_length=1000)] = ()
    builds: Annotated[tuple[InstanceId, ...], Meta(max_length=1000)] = ()
    host: HostName = ""  # only moves with this source or destination
    under_way: bool = False  # only moves that have not ended
    after: FreeText = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class MovesFound(Message, frozen=True, kw_only=True):
    """A page of moves, the answer to FindMoves."""

    moves: LongList[MoveStands]
    more: bool = False  # there are further pages, after `last`
    last: Text = ""


# Plans of many moves, which a scheduler carries out

PLANS = "plans"  # the address for replies to requests of plans


class EmptiedHost(Value, frozen=True, kw_only=True):
    """A host that a plan empties."""

    root: Id
    host: Text
    cell: Text


class SupposedDestination(Value, frozen=True, kw_only=True):
    """Where an active instance would move if its host were emptied now, or why it would stay."""

    build: Id
    root: Id  # the host that it would leave
    host: Text = ""  # the host that it would get; empty: none
    why: Cause = ""  # why it would get none: a reason code and a sentence
    decision: Decision | None = None  # the scheduler's decision, if it would get none


class Emptying(PlanPart, frozen=True, kw_only=True, omit_defaults=True):
    """The goal of a plan that moves all instances away from hosts."""

    hosts: Annotated[tuple[EmptiedHost, ...], Meta(max_length=10_000)] = ()
    kind: MoveKind = "live"
    to_cell: Text = ""  # destination cell; empty: the cell of each instance
    parts: MoveParts = none_of(MoveParts)  # of each move
    because: Text = ""  # instances leave a host only while it is disabled for this cause; empty: always
    patient: bool = True  # wait for builds and deletions in progress
    # move instances that cannot be moved again and again, and those that return, until the plan is stopped
    keeps_on: bool = False


class PlanOfMoves(Value, frozen=True, kw_only=True):
    """A goal that needs many moves. A scheduler requests the moves until the goal is reached."""

    id: Id
    parts: PlanParts = none_of(PlanParts)  # the goal: the part of one feature
    most: Amount = 10  # moves at a time
    plan: MovePlan = ""  # of each move
    note: Cause = ""  # of each move


class MoveOfPlan(Value, frozen=True, kw_only=True):
    """A move that a plan requested."""

    move: Id
    build: Id
    plan: Id
    root: Id  # the host that the instance leaves
    at: Seconds
    ended: Seconds = 0.0
    result: Cause = ""  # done, or how it failed
    code: Text = ""  # of a refusal (docs/reasons.md)
    host: Text = ""  # host of the instance after the end

    @property
    def problem(self) -> str:
        """Return why the move failed; empty: it is done, or in progress."""
        if self.result in ("", "done"):
            return ""
        return f"refused [{self.code}]: {self.result}" if self.code else self.result


class PlanStands(Value, frozen=True, kw_only=True):
    """A plan of moves with its progress."""

    plan: PlanOfMoves
    began: Seconds = 0.0
    stopping: bool = False  # requests no further moves, and ends when those in progress have ended
    ended: Seconds = 0.0
    code: Text = ""  # why the goal is not reached (docs/reasons.md); empty: it is, or the plan goes on
    why: Cause = ""
    total: Count = 0  # instances that were or are to be moved
    moved: Count = 0
    under_way: Count = 0
    gone: Count = 0  # instances that were deleted, or moved by another client
    stay: LargeMap[Id, Cause] = field(default_factory=dict)  # instances that are not moved: why
    version: Count = 0  # grows with each change
    moves: LongList[MoveOfPlan] = ()  # those that changed after the version in the query


class StartPlan(Message, frozen=True, kw_only=True):
    """A request to carry out a plan of moves. The same plan is started once."""

    plan: PlanOfMoves

    @property
    def roots(self) -> tuple[Id, ...]:
        """Return the hosts that the plan empties."""
        emptying = self.plan.parts.get(Emptying)
        return () if emptying is None else tuple([host.root for host in emptying.hosts])


class PlanStarted(Message, frozen=True, kw_only=True):
    """The answer to StartPlan: the id of the plan, or of a running plan with the same goal."""

    plan: Text = ""
    refused: Cause = ""


class StopPlan(Message, frozen=True, kw_only=True):
    """A request to end a plan of moves: it requests no further moves, and those in progress complete."""

    plan: Id


class PlanStopAnswered(Message, frozen=True, kw_only=True):
    """The answer to StopPlan."""

    stopped: bool  # False: the plan has ended before, or does not exist


class FindPlans(Message, frozen=True, kw_only=True):
    """A query for plans of moves that go on, newest first, or for the given plans."""

    plans: Annotated[tuple[Id, ...], Meta(max_length=100)] = ()
    root: Text = ""  # the last plans that empty this host, also if they have ended
    # with one plan: its moves that changed after this version; the answer may have only the first of them
    moves_after: Count | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 100


class PlansFound(Message, frozen=True, kw_only=True):
    """The plans of moves that match FindPlans."""

    plans: LongList[PlanStands]


class DecidedMove(DecisionPart, frozen=True, kw_only=True):
    """The request for a move that a decision refused; its demands on hosts are those of the decision's
    request.
    """

    request: MoveRequested

    @classmethod
    def of(cls, request: MoveRequested) -> "DecidedMove":
        """Return the part of the decision about a request for a move."""
        subject = f"{request.kind} {request.move} of {request.build}"
        return cls(request=request, builds=(request.build,), subject=subject)


def decided_move(found: DecisionFound) -> MoveRequested | None:
    """Return the request for the move that a decision is about."""
    part = found.parts.get(DecidedMove)
    return None if part is None else part.request


CONDUCTOR = "that cell's conductor"

# fmt: off
MOVE_REQUESTED = Topic("move.requested", MoveRequested,
    "migrate, resize, evacuate, shelve, unshelve or rebuild an instance", ANYONE, "scheduler")
MOVE_PLACED = Topic("move.placed.{cell}", MovePlaced, "the destination of a move, with its claim",
    "scheduler", CONDUCTOR, direct="handled")
MOVE_REFUSED = outcome("move.refused", MoveRefused, "a move was refused, with the reason", "scheduler")
MOVE_CONFLICT = outcome("move.conflict.{cell}", MoveConflict,
    "a repeated move request is refused: the first request with its id has other content",
    "scheduler, conductor")
MOVE_STEER = Topic("move.steer.{cell}", MoveSteered, "confirm, revert, abort or force a move", ANYONE,
    CONDUCTOR)
MOVE_PROGRESS = outcome("move.progressed.{cell}", MoveProgress,
    "progress of a move, or why it cannot be confirmed, reverted, aborted or forced", "conductor")
MOVE_ENDED = outcome("move.ended.{cell}", MoveEnded, "end of a move with its attempts", "conductor")
MOVE_HANDOVER = Topic("move.handover.{cell}", HandoverProgress,
    "move between cells: hand an instance over, or the outcome in the other cell", "scheduler",
    "the conductor of the source cell")
MOVE_HALF = Topic("move.half.{cell}", HandoverReported,
    "move between cells: state of the source or destination side", "conductor", "scheduler")
AGENT_MOVE = Topic("agent.move.{cell}.{agent}", MoveOrdered, "carry out one phase of a move",
    "conductor", "agent", direct="stored", relayed=True)
AGENT_MOVED = Topic("agent.moved.{cell}", MoveReported,
    "a phase of a move is done or failed, or its progress; the conductor's own timeout", "agent, conductor",
    "conductor")
FIND_MOVES = Query("cell.moves.{cell}", FindMoves, MovesFound,
    "moves of a cell, active and ended", ANYONE, CONDUCTOR)
START_PLAN = Query("scheduler.start_plan", StartPlan, PlanStarted,
    "carry out a plan of many moves", ANYONE, "scheduler")
STOP_PLAN = Query("scheduler.stop_plan", StopPlan, PlanStopAnswered,
    "request no further moves of a plan", ANYONE, "scheduler")
FIND_PLANS = Query("scheduler.plans", FindPlans, PlansFound,
    "plans of many moves, and their progress", ANYONE, "scheduler")
# fmt: on


# The acts on moves, and the refusals of their requests.


def _of_move(message: MoveRequested, target: Target, owners: ProjectsFound, state: Message | None) -> Target:
    """Return the target of a move with the cell of the build, or without a cell if the move names another."""
    place = owners.places.get(message.build) or BuildPlace(cell="")
    is_there = message.to_cell in ("", place.cell) and message.source in ("", place.root, place.host)
    project = owners.projects.get(message.build, "")
    return replace(target, cell=place.cell if is_there else "", project=project)


def _bound_move(message: MoveRequested, real: Target, owners: ProjectsFound) -> MoveRequested:
    place = owners.places.get(message.build)
    if place is None or not place.root:
        return message
    return structs.replace(message, cell=place.cell, source=place.root)


def _of_steering(
    message: MoveSteered, target: Target, owners: ProjectsFound, state: Message | None
) -> Target:
    moves = state.moves if isinstance(state, MovesFound) else ()
    is_there = [(move.build, move.cell, move.in_cell) for move in moves] == [
        (message.build, message.cell, "")
    ]
    project = owners.projects.get(message.build, "")
    return replace(target, cell=message.cell if is_there else "", project=project)


def _of_plan(message: StartPlan, target: Target, owners: ProjectsFound, state: Message | None) -> Target:
    """Return the target of a plan with the cell of all hosts that it empties; else without a cell."""
    found = state.providers if isinstance(state, ProvidersFound) else ()
    cells = {provider.cell for provider in found}
    emptying = message.plan.parts.get(Emptying)
    is_inside = emptying is not None and emptying.to_cell in ("", *cells)
    is_inside = is_inside and {provider.id for provider in found} == {*message.roots}
    return replace(target, cell=cells.pop() if is_inside and len(cells) == 1 else "", project="")


def _of_stopped(message: StopPlan, target: Target, owners: ProjectsFound, state: Message | None) -> Target:
    """Return the target of a plan with the cell of all hosts that it empties; else without a cell."""
    plans = state.plans if isinstance(state, PlansFound) else ()
    goals = [stands.plan.parts.get(Emptying) for stands in plans]
    cells = {host.cell for goal in goals if goal is not None for host in goal.hosts}
    return replace(target, cell=cells.pop() if len(cells) == 1 else "", project="")


def _move_of_member(asked: MoveRequested, member: ProjectMember, state: Message | None) -> MoveRequested:
    check_filtered(asked.forced_host)
    if asked.kind == "evacuate":
        raise NotAllowed("kind: only operators evacuate a host")
    if asked.parts.waits.since:
        raise NotAllowed("since: only preempted instances keep the time of their first request")
    return asked


def _steering_of_member(steer: MoveSteered, member: ProjectMember, state: Message | None) -> MoveSteered:
    moves = state.moves if isinstance(state, MovesFound) else ()
    if not any(move.build == steer.build for move in moves):
        raise NotAllowed("this build has no such move in this cell, or the cell does not answer")
    return steer


def _not_moved(request: InvalidRequest) -> Message:
    kind: Any = request.fields.get("kind")
    return MoveRefused(
        move=request.id("move"),
        build=request.id("build"),
        kind=kind if kind in get_args(MoveKind) else "migrate",
        reason=request.why,
        code=request.code,
        decision=request.decision,
        reply_to=request.reply_to,
    )


def _not_steered(request: InvalidRequest) -> Message:
    return MoveProgress(
        move=request.id("move"),
        build=request.id("build"),
        cell=request.cell_of(),
        phase="",
        refused=request.why,
        code=request.code,
        reply_to=request.reply_to,
    )


PART = MessagesPart(
    parts={DecisionParts: DecidedMove, PlanParts: Emptying},
    beginnings=(MoveRequested, MoveSteered),
    acts=(
        Act(
            "move",
            "operator",
            "move, resize, evacuate, shelve or rebuild instances",
            sent(MOVE_REQUESTED),
            limited_by=BOTH,
        ),
        Act(
            "steer move",
            "operator",
            "confirm, revert, abort or force a move",
            sent(MOVE_STEER),
            limited_by=("cells",),
        ),
        Act(
            "plan moves",
            "operator",
            "empty hosts, make room and rebalance by many moves",
            sent(START_PLAN, STOP_PLAN),
            limited_by=("cells",),
        ),
    ),
    requested={
        MoveRequested: Requested(
            state=lambda message: allocations_of(message.build),
            real=_of_move,
            bound=_bound_move,
            member=_move_of_member,
        ),
        MoveSteered: Requested(
            state=lambda message: (FIND_MOVES, FindMoves(cell=message.cell, moves=(message.move,))),
            real=_of_steering,
            by_owner=False,  # its cell's record of the move decides
            member=_steering_of_member,
        ),
        StartPlan: Requested(
            state=lambda message: (
                topics.PROVIDERS,
                FindProviders(ids=message.roots[:1000], parts=("owner",)),
            ),
            targets=("plan", "roots"),
            real=_of_plan,
            by_owner=False,
        ),
        StopPlan: Requested(
            state=lambda message: (FIND_PLANS, FindPlans(plans=(message.plan,))),
            targets=("plan",),
            real=_of_stopped,
            by_owner=False,
        ),
    },
    request_kinds=(
        RequestKind(MOVE_REQUESTED, _not_moved, "move"),
        RequestKind(MOVE_STEER, _not_steered, "steer"),
    ),
    page_asks=(FIND_MOVES, START_PLAN, STOP_PLAN, FIND_PLANS),
    page_publishes=(MoveRequested, MoveSteered),
    page_events=(MOVE_ENDED, MOVE_PROGRESS),
    rest_asks=(FIND_MOVES,),
    rest_publishes=(MoveRequested, MoveSteered),
)

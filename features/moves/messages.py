"""Messages about moves of existing instances: requests, placements, orders for each phase, and reports.

A scheduler begins a move with one claim: the build's consumer gets the allocations at the destination, and
its former allocations go to a holder consumer (`bus.claims.holder_consumer`). The cell's conductor does the
rest.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, field, structs

from bus.acts import BOTH, Act, Requested, Target, allocations_of, sent
from bus.decisions import Decision
from bus.invalid_requests import InvalidRequest, RequestKind
from bus.messages import Attempt, BuildPlaced, Selection
from bus.parts import DecisionParts, MoveParts, Part, none_of
from bus.projects import BuildPlace, ProjectsFound
from bus.queries import DecisionFound
from bus.requests import BuildSpec, Flavor, Image
from bus.topics import ANYONE, Query, Topic, outcome
from bus.vocabulary import (
    Allocations,
    Amount,
    Cause,
    Compact,
    Count,
    Id,
    LongList,
    Mappings,
    Message,
    Number,
    Ordinal,
    ReplyTo,
    Seconds,
    ShortList,
    Text,
    Value,
    Wait,
    Whole,
    Word,
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


class MoveRequested(Message, frozen=True, kw_only=True):
    """A request to move or change this instance. Requests with the same move id are carried out once."""

    move: Id
    build: Id
    kind: MoveKind
    cell: Text = ""  # cell of the instance; empty: the scheduler finds it
    to_cell: Text = ""  # destination cell; empty: the same cell
    flavor: Flavor | None = None  # resize: the new flavor
    image: Image | None = None  # rebuild: the new image
    wanted_host: Text = ""  # name or root of the only host to consider; filters apply
    forced_host: Text = ""  # name or root of the host to use, even if filters reject it
    ignore_hosts: ShortList[Text] = ()
    same_host: bool = False  # resize: may stay on the host if it has capacity for old and new allocations
    verify: bool = False  # migrate, resize: at the end, wait until an operator confirms or reverts the move
    verify_for: Wait = ""  # time after which the move is confirmed automatically; empty: never
    alternates: Annotated[int, Meta(ge=0, le=10)] = 2
    reply_to: ReplyTo = ""
    note: Cause = ""  # why the client requests the move
    plan: MovePlan = ""
    # expected host of the instance, by name or root: refused if the instance is not there; empty: any host
    source: Text = ""
    parts: MoveParts = none_of(MoveParts)
    strict: bool = False  # as in BuildRequested
    unknown_fields: ShortList[Cause] = ()


class MovePlaced(Message, frozen=True, kw_only=True):
    """The destination that was claimed for a move. The alternates are in the same cell, and not claimed."""

    move: Id
    build: Id
    kind: MoveKind
    cell: Word
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


class MoveRefused(Message, frozen=True, kw_only=True):
    """A move is refused, and nothing changed: no host was found, or the instance's state forbids it."""

    move: Id
    build: Id
    kind: MoveKind
    reason: Cause
    code: Text = ""  # code of the reason (docs/reasons.md)
    decision: Decision = Decision()
    reply_to: ReplyTo = ""


class PhaseOver(Compact, frozen=True):
    """The end of one phase of a move on one host: its result and time."""

    phase: Text
    host: Text
    outcome: Literal["done", "failed", "timed out", "given up"]
    cause: Cause = ""
    began: Number = 0.0
    ended: Number = 0.0


class MoveProgress(Message, frozen=True, kw_only=True):
    """The new state of a move after each change, or why an operator's MoveSteered was refused."""

    move: Id
    build: Id
    cell: Word
    phase: Text  # current phase of an order, or verify, confirm, revert, abort
    host: Text = ""  # destination, or source while the move is undone; empty: no destination (shelve)
    percent: Annotated[int, Meta(ge=0, le=100)] = 0
    refused: Cause = ""  # the refused MoveSteered, and the reason
    reply_to: ReplyTo = ""
    code: Text = ""  # code of the refusal (docs/reasons.md)
    notes: ShortList[Cause] = ()  # fields of the MoveSteered that are not known


class MoveEnded(Message, frozen=True, kw_only=True):
    """A move has ended. The instance is on `host`, unless it was deleted or shelved."""

    move: Id
    build: Id
    kind: MoveKind
    cell: Word
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

    move: Id
    build: Id
    cell: Word
    to: Steering
    reply_to: ReplyTo = ""
    strict: bool = False  # as in BuildRequested
    unknown_fields: ShortList[Cause] = ()


# Section: moves between cells: scheduler ↔ conductors of both cells


class HandoverProgress(Message, frozen=True, kw_only=True):
    """A scheduler's message to the source cell of a move between cells: `leave` starts the handover of the
    instance; `done`, `back` and `deleted` report how the destination cell ended the move.
    """

    move: Id
    build: Id
    kind: MoveKind
    cell: Word  # source cell
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


class HandoverReported(Message, frozen=True, kw_only=True):
    """The state of one cell's part of a move between cells, republished until the other cell confirms it."""

    move: Id
    build: Id
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


class MoveOrdered(Message, frozen=True, kw_only=True, omit_defaults=True):
    """An order to an agent to carry out this phase of a move on this host, for the guest of this attempt.

    `step` grows with every order of a build, over all its moves. An agent ignores orders with a lower step
    than its last order of the build on that host.
    """

    move: Id
    build: Id
    kind: MoveKind
    phase: MovePhase
    step: Amount
    attempt: Amount  # resume, rebuild: the new attempt of the guest
    was: Count = 0  # resume, rebuild: the former attempt of the guest
    cell: Word
    agent: Word
    root: Id
    host: Text
    peer: Text = ""  # the other host of the move
    force: bool = False  # send: the guest may be paused to finish the copy
    spec: BuildSpec
    allocations: Allocations = field(default_factory=dict)  # as in BuildOrdered
    mappings: Mappings = field(default_factory=dict)
    epoch: Ordinal = 0


class MoveReported(Message, frozen=True, kw_only=True):
    move: Id
    build: Id
    phase: MovePhase
    step: Amount
    attempt: Amount
    cell: Word
    agent: Word
    root: Id
    host: Text
    # overdue: made by the conductor itself, because the agent has not reported in time
    outcome: Literal["done", "failed", "progress", "overdue"]
    removed: bool = False  # with overdue: immediately, because an operator has removed the agent
    percent: Annotated[int, Meta(ge=0, le=100)] = 0
    leftover: bool = False  # failed: parts of the guest may still exist
    retry: bool = True  # failed: whether another host may succeed
    cause: Cause = ""
    epoch: Ordinal = 0


class MoveStands(Value, frozen=True, kw_only=True):
    """The state of a move, from the records of its cell."""

    move: Id
    build: Id
    kind: MoveKind
    cell: Word
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

    @property
    def towards(self) -> str:
        """Return the destination host of a move, or its source host while the move is being undone."""
        return self.source if self.phase in WAY_BACK else self.host


class FindMoves(Message, frozen=True, kw_only=True):
    """A query for a page of the moves that one cell has recorded and that meet all given conditions, newest
    first.
    """

    cell: Word
    moves: Annotated[tuple[Id, ...], Meta(max_length=1000)] = ()
    builds: Annotated[tuple[Id, ...], Meta(max_length=1000)] = ()
    host: Text = ""  # only moves with this source or destination
    under_way: bool = False  # only moves that have not ended
    after: Text = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class MovesFound(Message, frozen=True, kw_only=True):
    moves: LongList[MoveStands]
    more: bool = False  # there are further pages, after `last`
    last: Text = ""


class DecidedMove(Part, frozen=True, kw_only=True):
    """The request for a move that a decision refused; its demands on hosts are those of the decision's
    request.
    """

    request: MoveRequested

    @property
    def builds(self) -> tuple[Id, ...]:
        return (self.request.build,)

    @property
    def subject(self) -> str:
        return f"{self.request.kind} {self.request.move} of {self.request.build}"


PARTS: Mapping[type, type[Part]] = {DecisionParts: DecidedMove}
BEGINNINGS = (MoveRequested, MoveSteered)


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
    "conductor", direct="handled")
FIND_MOVES = Query("cell.moves.{cell}", FindMoves, MovesFound,
    "moves of a cell, active and ended", ANYONE, CONDUCTOR)
# fmt: on
PAGE_ASKS = REST_ASKS = (FIND_MOVES,)
PAGE_EVENTS = (MOVE_ENDED, MOVE_PROGRESS)
PAGE_PUBLISHES = REST_PUBLISHES = (MoveRequested, MoveSteered)


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


ACTS = (
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
)
REQUESTED: Mapping[type[Message], Requested] = {
    MoveRequested: Requested(
        state=lambda message: allocations_of(message.build),
        ids=lambda message: ({message.move}, {message.build}),
        real=_of_move,
        bound=_bound_move,
    ),
    MoveSteered: Requested(
        state=lambda message: (FIND_MOVES, FindMoves(cell=message.cell, moves=(message.move,))),
        ids=lambda message: (set(), {message.build}),
        real=_of_steering,
        by_owner=False,  # its cell's record of the move decides
    ),
}


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


REQUEST_KINDS = (
    RequestKind(MOVE_REQUESTED, _not_moved, "move"),
    RequestKind(MOVE_STEER, _not_steered, "steer"),
)

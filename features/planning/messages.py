"""Messages for plans of moves, which make room for builds or rebalance hosts."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, field

from bus.decisions import Decision
from bus.domains import Labels
from bus.feature import MessagesPart
from bus.messages import BuildRequested
from bus.parts import PlanPart, PlanParts
from bus.topics import ANYONE, Query
from bus.vocabulary import (
    Cause,
    ClassName,
    Count,
    Id,
    LargeMap,
    LongList,
    Message,
    Number,
    Seconds,
    ShortList,
    Text,
    Value,
    Whole,
)
from features.moves.messages import MovePlan, MoveRequested, PlanOfMoves
from features.what_if.messages import PlacedThere, WhatIfAnswered

MOST_MOVES = 1000  # moves in one plan
# reason codes of requests without a host that may fit after other instances have moved
MOVES_MAY_HELP = frozenset({"class", "room", "group", "together", "topology", "server_group"})
Budget = Annotated[int, Meta(ge=0, le=MOST_MOVES)]
Goal = Literal["", "spread", "usable"]
LEAST_GAINS: Mapping[str, float] = {"spread": 0.1, "usable": 0.05}  # by goal, unless a query has another


class PlannedStep(Value, frozen=True, kw_only=True):
    """One move of a plan. The move begins when the moves of all lower waves have ended."""

    build: Id
    name: Text = ""
    kind: Literal["live", "migrate"]  # migrate: the instance is stopped, because its devices require this
    cell: Text
    source: Id
    source_host: Text
    destination: Id
    destination_host: Text
    holder: Text = ""  # holder consumer of the source's allocations until the guest there is destroyed
    wave: Count = 0
    gain: Number = 0.0  # of a rebalancing
    amounts: LargeMap[Text, Whole] = field(default_factory=dict)

    def request(self, move: Id, plan: MovePlan, note: str) -> MoveRequested:
        """Return the request for the move, or with the plan `undo`, for the move back to its source."""
        source, destination = self.source, self.destination
        if plan == "undo":
            source, destination = destination, source
        return MoveRequested(
            move=move,
            build=self.build,
            cell=self.cell,
            kind=self.kind,
            wanted_host=destination,
            alternates=0,
            note=note,
            plan=plan,
            source=source,
        )


class PlanRoom(Message, frozen=True, kw_only=True):
    """A query for the fewest moves after which all instances of this request fit. Nothing is claimed."""

    request: BuildRequested
    budget: Budget = 10  # maximum number of moves
    cold: bool = False  # stop each instance before its move
    # hosts that this plan has closed: the instances are placed only there, although these hosts are disabled
    roots: Annotated[tuple[Id, ...], Meta(max_length=1000)] = ()
    fixed: ShortList[Id] = ()  # instances not to move, for example because an earlier move failed
    within: Labels = field(default_factory=dict)  # level → label: only hosts of these domains are targets
    # hosts that instances leave in the plan carried out so far: read also if they are no targets
    via: Annotated[tuple[Id, ...], Meta(max_length=1000)] = ()


class RoomPlanned(Message, frozen=True, kw_only=True):
    """The answer to PlanRoom: the moves and each instance's host after them, or why not all instances fit."""

    # why not all instances fit after the moves: a reason code (docs/reasons.md); empty: all fit
    code: Text = ""
    why: Cause = ""
    moves: LongList[PlannedStep] = ()
    targets: LongList[PlacedThere] = ()  # hosts of the request's instances that fit
    hosts: Count = 0  # number of hosts on which an instance would fit if they were empty
    decision: Decision = Decision()  # if `hosts` is 0: what rejected all hosts
    # why a plan with fewer moves may exist, or with a `code`, any plan; empty: there is none
    unproven: Cause = ""


class PlanBalance(Message, frozen=True, kw_only=True):
    """A query for moves between hosts that come nearer to a goal. Nothing is claimed.

    The goal `spread`: from the fullest hosts to emptier ones. The used share of a host is the used fraction
    of its capacity. A move's gain is the larger used share of its two hosts before the move, minus the larger
    used share of the two after the move.

    The goal `usable`: so that the usual requests can use more of what is free. A move's gain is how much more
    of its two hosts is usable, in average hosts.
    """

    goal: Goal = ""  # empty: `usable` if the placement profile prefers what leaves most usable, else `spread`
    cell: Text = ""  # only this cell; empty: all cells, without moves between cells
    resource_class: ClassName = "VCPU"  # with `spread`
    budget: Budget = 10
    gain: Number | None = None  # minimum gain of each move; default: 0.1, or with `usable` 0.05
    above: Number = 0.0  # with `spread`: instances leave only hosts with a larger used share
    cold: bool = False
    fixed: ShortList[Id] = ()


class BalancePlanned(Message, frozen=True, kw_only=True):
    """The answer to PlanBalance: the moves in their sequence, and for each cell a figure before and after.

    With the goal `spread`, the figure is the standard deviation of the used shares of the hosts' capacity,
    between 0 and 0.5. With the goal `usable`, it is how many instances of a usual shape fit: the mean over
    the shapes, by how much is requested of each.
    """

    goal: Goal = "spread"
    why: Cause = ""  # why nothing can be planned for the goal
    moves: LongList[PlannedStep] = ()
    before: LargeMap[Text, Number] = field(default_factory=dict)
    after: LargeMap[Text, Number] = field(default_factory=dict)


class BatchedMoves(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The progress of a plan whose moves run in batches. After each batch the rest is planned again."""

    planned: LongList[PlannedStep] = ()  # moves that have not begun
    plans: bool = False  # the rest of the moves is to be planned first
    batch: LongList[PlannedStep] = ()  # moves that have begun
    batches: Count = 0  # so far; the ids of moves follow from it
    tried: Count = 0  # moves of ended batches
    failures: Count = 0  # of these moves
    moved: LongList[PlannedStep] = ()
    undone: LongList[PlannedStep] = ()  # moved, and moved back
    failed: LargeMap[Id, Cause] = field(default_factory=dict)  # instances that were not moved: why
    why_undone: Cause = ""
    back: LongList[PlannedStep] = ()  # moves that are still to be undone, in this sequence


class Balancing(BatchedMoves, frozen=True, kw_only=True, omit_defaults=True):
    """The goal of a plan that rebalances hosts, and its progress."""

    query: PlanBalance = PlanBalance()
    keeps_on: bool = False  # move instances again when it is necessary, until the plan is stopped
    hold: Seconds = 0.0  # with keeps_on: only if moves have been necessary for so long


class RoomGoal(BatchedMoves, frozen=True, kw_only=True, omit_defaults=True):
    """The goal of a plan that makes room for builds, and its progress.

    The hosts for the builds, its targets, are closed to other requests until the builds fit or the plan is
    given up. Then they are opened, and if it was given up, the moved instances are moved back.
    """

    query: PlanRoom
    undoes: bool = True  # if the plan is given up
    reserve: Seconds = 0.0  # keep the hosts closed until the client ends the plan; after so long: give up
    targets: Annotated[tuple[PlacedThere, ...], Meta(max_length=1000)] = ()  # no other plan has them
    closing: ShortList[Id] = ()  # targets that may be closed
    closed: ShortList[Id] = ()  # of them: those that are
    opens: bool = False  # no further move is made, and all are to be opened
    held_until: Seconds = 0.0  # all builds fit; with `reserve`
    via: Annotated[tuple[Id, ...], Meta(max_length=1000)] = ()  # hosts that instances have left
    searches: Count = 0  # for the rest of the moves, so far
    retries: Count = 0  # of these searches, without a plan
    found: RoomPlanned = RoomPlanned()  # by the last search
    code: Text = ""  # why the plan was given up (docs/reasons.md)
    why: Cause = ""


class PlanningGoal(PlanPart, frozen=True, kw_only=True, omit_defaults=True):
    """The goal of a plan of this feature: one of these."""

    balance: Balancing | None = None
    room: RoomGoal | None = None


def balancing_of(plan: PlanOfMoves) -> Balancing | None:
    """Return the goal of a plan that balances hosts; None for other plans."""
    goal = plan.parts.get(PlanningGoal)
    return None if goal is None or goal.room is not None else goal.balance


def balancing_goal(plan: PlanOfMoves) -> Balancing:
    """Return the goal of a plan that is a rebalancing."""
    goal = balancing_of(plan)
    assert goal is not None, plan.id
    return goal


def room_of(plan: PlanOfMoves) -> RoomGoal | None:
    """Return the goal of a plan that makes free capacity; None for other plans."""
    goal = plan.parts.get(PlanningGoal)
    return None if goal is None or goal.balance is not None else goal.room


class WhatIfMoves(Message, frozen=True, kw_only=True):
    """A what-if question about several moves, each evaluated as if all previous moves were done."""

    moves: Annotated[tuple[MoveRequested, ...], Meta(min_length=1, max_length=100)]
    closed: Annotated[tuple[Id, ...], Meta(max_length=10_000)] = ()  # hosts to exclude as destinations
    best: Annotated[int, Meta(ge=1, le=64)] = 8  # number of hosts to return for the first move, best first


class WhatIfMovesAnswered(Message, frozen=True, kw_only=True):
    """The answer to WhatIfMoves, with one answer for each move. If a move was refused before any host was
    searched, its answer has a `refusal`, and the reason code in `decision.code`. To keep the message small,
    only the first move with a destination has its decision.
    """

    answers: LongList[WhatIfAnswered]


WHAT_IF_MOVES = Query(
    "scheduler.what_if_moves",
    WhatIfMoves,
    WhatIfMovesAnswered,
    "the decisions about moves, without claiming",
    ANYONE,
    "scheduler",
)
PLAN_ROOM = Query(
    "scheduler.plan_room",
    PlanRoom,
    RoomPlanned,
    "the moves after which a request would fit, without claiming",
    ANYONE,
    "scheduler",
)
PLAN_BALANCE = Query(
    "scheduler.plan_balance",
    PlanBalance,
    BalancePlanned,
    "the moves that make the load of hosts more equal, or more of them usable, without claiming",
    ANYONE,
    "scheduler",
)


PART = MessagesPart(parts={PlanParts: PlanningGoal}, page_asks=(PLAN_ROOM,))

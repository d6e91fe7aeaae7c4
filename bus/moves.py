"""Moves of existing instances: requests, placements, orders by phase, and reports.

A scheduler begins a move with one claim: the build's consumer gets the destination, and its former
allocations go to the keeper of the moving attempt (`bus.claims.keeper`), of type MIGRATION. Its cell does
the rest.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from bus.decisions import Decision
from bus.messages import Attempt, BuildPlaced, ReplyTo, Selection, Wait
from bus.requests import BuildSpec, Flavor, Image
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
    Seconds,
    ShortList,
    Text,
    Value,
    Whole,
    Word,
)

MoveKind = Literal["migrate", "resize", "live", "evacuate", "shelve", "unshelve", "rebuild"]
MovePhase = Literal["prepare", "send", "start", "resume", "rebuild"]  # what an agent is ordered to do
MoveEnd = Literal["done", "reverted", "aborted", "error", "deleted"]
Steering = Literal["confirm", "revert", "abort", "force"]

BEGUN = "begun"  # why the name of a move that has its claim is retired
SHELVED = "shelved"  # why an instance is that holds nothing: only a claim that begins a move wakes it
# What is under way when it goes back where it was, as a cell has it and as it is shown.
WAY_BACK = ("undo", "back", "resume", "recall", "revert", "abort")


class MoveRequested(Message, frozen=True, kw_only=True):
    """Move this instance, or change what it is. Of one id it is done once, however often it is asked for."""

    move: Id
    build: Id
    kind: MoveKind
    cell: Text = ""  # where it is; empty: that is found out
    to_cell: Text = ""  # where it goes; empty: it stays in its cell
    flavor: Flavor | None = None  # resize: what it is to be
    image: Image | None = None  # rebuild: the new image
    wanted_host: Text = ""  # only this host, by name or root
    forced_host: Text = ""  # this host, whatever the filters decide
    ignore_hosts: ShortList[Text] = ()
    same_host: bool = False  # resize: it may stay where it is, if old and new fit there together
    verify: bool = False  # migrate, resize: it waits to be confirmed, or reverted
    verify_for: Wait = ""  # time until it is confirmed automatically; empty: never
    alternates: Annotated[int, Meta(ge=0, le=10)] = 2
    wait: Wait = ""  # time to wait for free capacity; empty: it is refused without
    priority: Annotated[int, Meta(ge=0, le=9)] = 0
    reply_to: ReplyTo = ""


class MovePlaced(Message, frozen=True, kw_only=True):
    """The move has a destination, and its cell runs it. The alternates are in the same cell, and are not
    claimed.
    """

    move: Id
    build: Id
    kind: MoveKind
    cell: Word
    # of the guest that moves: its keeper holds its former allocations; 0: there is no guest (unshelve)
    attempt: Count
    generation: Ordinal | None  # of the build's consumer, after the claim; None: it holds nothing
    chosen: Selection | None = None  # None: it has no destination (shelve)
    alternates: LongList[Selection] = ()
    spec: BuildSpec  # what it is once it has moved
    verify: bool = False
    verify_for: Wait = ""
    decision: Decision = Decision()
    reply_to: ReplyTo = ""
    # Out of another cell: which, what its instance was booted as, and the last attempt and step given there.
    out_of: Text = ""
    booted: BuildPlaced | None = None
    above: Count = 0
    steps: Count = 0


class MoveRefused(Message, frozen=True, kw_only=True):
    """The move is refused: there is no host, or the instance's state does not allow it. Nothing was
    changed.
    """

    move: Id
    build: Id
    kind: MoveKind
    reason: Cause
    code: Text = ""  # why, for programs (docs/reasons.md)
    decision: Decision = Decision()
    reply_to: ReplyTo = ""


class PhaseOver(Compact, frozen=True):
    """One phase of a move, on one host."""

    phase: Text
    host: Text
    outcome: Literal["done", "failed", "timed out", "given up"]
    cause: Cause = ""
    began: Number = 0.0
    ended: Number = 0.0


class MoveTold(Message, frozen=True, kw_only=True):
    """The state of a move after each change, or the reason why it cannot be steered that way."""

    move: Id
    build: Id
    cell: Word
    phase: Text  # what is under way: a phase, verify, confirm, revert, abort
    host: Text = ""  # where it goes; on the way back where it was; empty: nowhere (shelve)
    percent: Annotated[int, Meta(ge=0, le=100)] = 0
    refused: Cause = ""  # what was asked of it, and why not
    reply_to: ReplyTo = ""


class MoveEnded(Message, frozen=True, kw_only=True):
    """The move has ended. The instance is on `host`, unless it was deleted or shelved."""

    move: Id
    build: Id
    kind: MoveKind
    cell: Word
    end: MoveEnd
    host: Text = ""
    root: Text = ""
    reason: Cause = ""
    phases: LongList[PhaseOver] = ()
    attempts: LongList[Attempt] = ()  # of the destinations
    decision: Decision = Decision()
    reply_to: ReplyTo = ""


class MoveSteered(Message, frozen=True, kw_only=True):
    """Confirm or revert a move that waits for it; abort one, or have its copying end sooner."""

    move: Id
    build: Id
    cell: Word
    to: Steering
    reply_to: ReplyTo = ""


# Out of one cell and into another: a scheduler and the two halves


class HandoverTold(Message, frozen=True, kw_only=True):
    """To the cell that an instance leaves: let it go; or, once, how that has ended in the other."""

    move: Id
    build: Id
    kind: MoveKind
    cell: Word  # this one
    to_cell: Word
    say: Literal["leave", "done", "back", "deleted"]
    # of the guest at the source: its keeper holds its former allocations; 0: there is no guest (unshelve)
    attempt: Count
    host: Text = ""  # where it goes
    spec: BuildSpec  # what it is once it has moved
    # back
    generation: Ordinal | None = None  # of its consumer, which has its old place again
    above: Count = 0  # the last attempt, and step, given in the other cell
    steps: Count = 0
    end: MoveEnd = "error"  # what the move ends as
    cause: Cause = ""
    problem: Cause = ""  # why its old place could not be had back
    phases: LongList[PhaseOver] = ()  # in the other cell
    attempts: LongList[Attempt] = ()
    decision: Decision = Decision()
    reply_to: ReplyTo = ""


class HandoverReported(Message, frozen=True, kw_only=True):
    """The state of one side of a move between cells. It is published again until it is answered."""

    move: Id
    build: Id
    cell: Word
    half: Literal["leaving", "arriving"]
    # leaving: ready, failed, deleted; arriving: arrived, back, deleted; either: whom it is not in is deleted
    outcome: Literal["ready", "failed", "arrived", "back", "deleted", "delete"]
    above: Count = 0  # the last attempt, and step, given here
    steps: Count = 0
    end: MoveEnd = "error"  # failed, back: what the move ends as
    cause: Cause = ""
    phases: LongList[PhaseOver] = ()
    attempts: LongList[Attempt] = ()
    reply_to: ReplyTo = ""  # delete: reply word of the client


# Inside a cell: conductor ↔ agents


class MoveOrdered(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Do this phase of the move, with the guest of this attempt, on this host.

    `step` grows with every order of a build, over all of its moves: what is older than what an agent knows of
    it on that host is void.
    """

    move: Id
    build: Id
    kind: MoveKind
    phase: MovePhase
    step: Amount
    attempt: Amount  # resume, rebuild: what it is from now on
    was: Count = 0  # resume, rebuild: the attempt of that guest
    cell: Word
    agent: Word
    root: Id
    host: Text
    peer: Text = ""  # the other host
    force: bool = False  # send: it need not be copied to the end while it runs
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
    # overdue is the conductor's reminder to itself
    outcome: Literal["done", "failed", "progress", "overdue"]
    percent: Annotated[int, Meta(ge=0, le=100)] = 0
    leftover: bool = False  # failed: something of it may still be there
    retry: bool = True  # failed: may another host do?
    cause: Cause = ""
    epoch: Ordinal = 0


# Looking


class MoveStands(Value, frozen=True, kw_only=True):
    """A move as its cell knows it."""

    move: Id
    build: Id
    kind: MoveKind
    cell: Word
    phase: Text  # what is under way; when it is over, how it ended
    source: Text = ""
    host: Text = ""  # the destination
    at: Text = ""  # ended: the host of the instance; empty: none
    percent: Whole = 0
    since: Seconds = 0.0
    ended: Seconds = 0.0
    reason: Cause = ""
    phases: LongList[PhaseOver] = ()
    attempts: LongList[Attempt] = ()
    decision: Decision = Decision()
    in_cell: Text = ""  # where the rest of it is, which is to be asked there; empty: here

    @property
    def towards(self) -> str:
        """The host that `MoveTold` names: where it goes, or goes back to."""
        return self.source if self.phase in WAY_BACK else self.host


class FindMoves(Message, frozen=True, kw_only=True):
    """Ask for the moves of a cell, by id or page by page, newest first."""

    cell: Word
    moves: Annotated[tuple[Id, ...], Meta(max_length=1000)] = ()
    builds: Annotated[tuple[Id, ...], Meta(max_length=1000)] = ()
    host: Text = ""  # from it, or to it
    under_way: bool = False  # only moves that have not ended
    after: Text = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class MovesFound(Message, frozen=True, kw_only=True):
    moves: LongList[MoveStands]
    more: bool = False  # ask again, after `last`
    last: Text = ""

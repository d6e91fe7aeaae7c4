"""Queries about free capacity for placement, about decisions and waiting for schedulers, about builds for
cells.

Other queries are in the modules of their subject: `claims`, `resources`, `names`, `groups`, `aggregates`,
`cells`, `leases`, and `known_trees` and `known_changes` for a replica in another process.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from bus.decisions import Decision, NearMiss, Removal
from bus.messages import Attempt, BuildPlaced, BuildRequested, Selection
from bus.moves import MoveRequested
from bus.requests import BuildSpec, ResourceGroup
from bus.vocabulary import (
    MAX_GROUPS,
    Allocations,
    Amount,
    Cause,
    ClassName,
    Compact,
    Count,
    Id,
    LargeMap,
    LongList,
    Mappings,
    Message,
    Number,
    Ordinal,
    Seconds,
    Shapes,
    ShortList,
    Text,
    TraitName,
    Value,
    Weight,
    Whole,
    Word,
    Zone,
)

# What would fit


class Candidate(Compact, frozen=True):
    """A complete allocation that would fit now, with the facts that filters and weighers read."""

    root: Id
    host: Text
    cell: Text
    agent: Text
    zone: Text
    allocations: Allocations
    shapes: Shapes
    free: LargeMap[Text, Whole] = field(default_factory=dict)
    capacity: LargeMap[Text, Whole] = field(default_factory=dict)
    traits: LongList[Text] = ()
    # group suffix → the providers that serve it
    mappings: Mappings = field(default_factory=dict)
    # Of each provider in allocations, what is free of what is taken there; empty where the root is its whole
    # tree and serves all: then `free` says it.
    rooms: LargeMap[Text, LargeMap[Text, Whole]] = field(default_factory=dict)
    aggregates: LongList[Text] = ()  # of the root


class OrderBy(Value, frozen=True, kw_only=True):
    """A weight: what is free of a class, or there is in all, from the least to the most of all that fit.

    A score is the sum of multiplier × (amount − lowest) / (highest − lowest).
    """

    resource_class: ClassName
    of: Literal["free", "total"] = "free"
    multiplier: Weight = 1.0
    lowest: Number | None = None  # lower end of the scale, lower values count as this; None: the lowest value
    highest: Number | None = None  # upper end of the scale; None: the highest value


class FindCandidates(Message, frozen=True, kw_only=True):
    """Ask what would fit now. `after` continues a search where the last page ended.

    Each host is on one page only while the query stays the same, including `order` with its scale: later
    pages name the scale of the first. A host whose free capacity changes between two pages may come twice or
    not at all.
    """

    groups: Annotated[tuple[ResourceGroup, ...], Meta(min_length=1, max_length=MAX_GROUPS)]
    cell: Text = ""
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 256
    after: Ordinal = 0
    seed: Text = ""  # searches with other seeds start at other hosts, so they do not all meet at the same
    group_policy: Literal["none", "isolate"] = "none"  # isolate: groups with a suffix never share a provider
    same_subtree: ShortList[ShortList[Text]] = ()  # sets of suffixes; one provider is above the others of i
    root_required: ShortList[TraitName] = ()
    root_forbidden: ShortList[TraitName] = ()
    nested: bool = True  # False: never two providers of one tree, as in the API before 1.29
    per_host: Count = 1  # how many ways to use one host; 0: all there are
    zone: Zone = ""  # of the host itself, or by an aggregate it is in
    roots: LongList[Id] = ()  # only these hosts; empty: any
    not_roots: LongList[Id] = ()
    # Best first by these, over all that fit, those alike in an order by the seed; empty: round from the seed
    order: Annotated[tuple[OrderBy, ...], Meta(max_length=64)] = ()
    isolated: ShortList[Text] = ()  # suffixes of groups that never share a provider with one another
    root_member_of: ShortList[ShortList[Id]] = ()  # aggregates of the host: every inner list is met by one
    root_not_member_of: ShortList[Id] = ()
    not_cells: LongList[Word] = ()  # disabled cells


class CandidatesFound(Message, frozen=True, kw_only=True):
    seen: Ordinal  # the last change this answer knows of
    candidates: LongList[Candidate]
    fitting: Count  # how many there are in all
    considered: Count
    more: Ordinal | None = None  # ask again with after=more
    removals: LongList[Removal] = ()
    nearest: LongList[NearMiss] = ()
    cut: bool = False  # too many combinations: the search stopped early
    order: LongList[OrderBy] = ()  # as it was asked, with the scale that was used


# What schedulers are asked


class WaitingRequest(Value, frozen=True, kw_only=True):
    """A request that waits for room, or a move that does."""

    request: Id
    builds: LongList[Id] = ()  # some of them
    instances: Whole
    project: Text
    flavor: Text
    priority: Whole
    since: Seconds
    until: Seconds
    kind: Text  # requests alike wait in one line
    position: Whole  # in that line
    lacks: Cause
    wakes: Cause = ""  # what would cause another look
    move: Text = ""  # the kind of move, if this is a move of its one build


class WaitingKind(Compact, frozen=True):
    """The number of waiting requests of one kind."""

    kind: Text
    flavor: Text
    requests: Whole
    instances: Whole


class FindWaiting(Message, frozen=True, kw_only=True):
    """Ask which requests wait for free capacity, in the order in which they are served."""

    # Only these, if they wait; or the moves of these instances
    requests: Annotated[tuple[Id, ...], Meta(max_length=1000)] = ()
    # only requests of this project; empty: of all projects
    project: Annotated[str, Meta(max_length=255)] = ""
    after: Count = 0  # so many are passed over
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class WaitingFound(Message, frozen=True, kw_only=True):
    waiting: LongList[WaitingRequest]
    count: Count  # in all
    kinds: LongList[WaitingKind] = ()  # the kinds with the most waiting requests
    rescued: Count = 0  # requests that only the periodic search found a host for
    more: Count | None = None  # ask again with after=more


class FindDecision(Message, frozen=True, kw_only=True):
    """Why has this build, or request, no host? Why does this move not go on?"""

    id: Id


class DecisionFound(Message, frozen=True, kw_only=True):
    """What schedulers know of a request that got no host, or that waits for one."""

    known: bool = False
    request: BuildRequested | None = None  # as it was asked
    builds: LongList[Id] = ()
    reason: Cause = ""
    decision: Decision = Decision()
    at: Seconds = 0.0  # when it was decided, or since when it waits
    waits: bool = False
    until: Seconds = 0.0  # it waits
    wakes: Cause = ""  # what would cause another look
    move: MoveRequested | None = None  # it is this one; `request` is what it asks of hosts


class PlacedThere(Value, frozen=True, kw_only=True):
    """The number of instances that would go to a host."""

    root: Id
    host: Text
    cell: Text
    zone: Text = ""
    instances: Amount = 1


class RankedHost(Value, frozen=True, kw_only=True):
    """A host that would do, with what each weigher gives it, and their sum as `total`."""

    root: Id
    host: Text
    cell: Text
    zone: Text = ""
    scores: LargeMap[Text, Number] = field(default_factory=dict)


class RoomLeft(Value, frozen=True, kw_only=True):
    """How many more instances fit into a zone of a cell, and on how many hosts."""

    cell: Text
    zone: Text = ""
    hosts: Count = 0
    instances: Count = 0


class WhatIf(Message, frozen=True, kw_only=True):
    """Ask what the decision about this request would be now. Nothing is claimed."""

    request: BuildRequested
    best: Annotated[int, Meta(ge=1, le=64)] = 8  # hosts to be named, the best first
    room: bool = False  # how many more are there room for, in all?
    # As if the request were for so many instances, more than one boot may have; 0: those that it names.
    count: Annotated[int, Meta(ge=0, le=10_000)] = 0


class WhatIfAnswered(Message, frozen=True, kw_only=True):
    fits: bool
    refusal: Cause = ""  # it cannot be meant
    flavor: Count = 0  # 0: the flavor asked for; n: the nth of or_else
    placed: LongList[PlacedThere] = ()  # where its instances would go
    best: LongList[RankedHost] = ()  # the best hosts for one of them
    decision: Decision = Decision()  # of the first of them; or why there is no host
    room: LongList[RoomLeft] = ()
    cut: Cause = ""  # why there may be more room than that


class WhatIfMoves(Message, frozen=True, kw_only=True):
    """Ask what the decisions about these moves would be now, each after those before it. Nothing is claimed
    or begun.
    """

    moves: Annotated[tuple[MoveRequested, ...], Meta(min_length=1, max_length=100)]
    closed: Annotated[tuple[Id, ...], Meta(max_length=10_000)] = ()  # hosts that none of them may go to
    best: Annotated[int, Meta(ge=1, le=64)] = 8  # hosts to be named of the first, the best first


class WhatIfMovesAnswered(Message, frozen=True, kw_only=True):
    """One answer for each move, as for a request. With `refusal` no host would be looked for; the reason is
    in `decision.code`. Of the moves that have a destination only the first has its decision.
    """

    answers: LongList[WhatIfAnswered]


# What a cell is asked


class FindBuilds(Message, frozen=True, kw_only=True):
    """Ask for the states of these builds in this cell."""

    cell: Word
    builds: Annotated[tuple[Id, ...], Meta(min_length=1, max_length=100)]


class BuildStands(Value, frozen=True, kw_only=True):
    """A build as its cell knows it."""

    build: Id
    status: Text
    placed: BuildPlaced  # with the decision that chose its host
    host: Text  # the one it is on, or was last
    attempts: LongList[Attempt] = ()  # finished attempts
    reason: Cause = ""
    # What a move begins from.
    attempt: Count = 0  # of its guest
    generation: Ordinal | None = None  # of its consumer
    chosen: Selection | None = None  # where it is, by placement
    spec: BuildSpec | None = None  # what it is by now
    move: Id | None = None  # the one it is in, or was in last


class BuildsFound(Message, frozen=True, kw_only=True):
    builds: LongList[BuildStands]  # builds that the cell knows and that were placed


InstanceStatus = Literal[
    "building", "swapping", "active", "moving", "verifying", "shelved", "error", "deleting", "deleted"
]


class Instance(Value, frozen=True, kw_only=True):
    """A build as a list of them shows it."""

    build: Id
    name: Text = ""
    status: Text
    cell: Word
    host: Text  # the one it is on, or was last
    root: Text
    project: Text
    flavor: Text
    attempt: Count = 0  # how many hosts it has been ordered on
    since: Seconds = 0.0  # of its last attempt
    reason: Cause = ""


class FindInstances(Message, frozen=True, kw_only=True):
    """Builds of this cell that are all of this, in the order of their ids; a page of them."""

    cell: Word
    project: Annotated[str, Meta(max_length=255)] = ""  # empty: everybody's
    host: Annotated[str, Meta(max_length=255)] = ""  # its name, or its root's id
    name: Annotated[str, Meta(max_length=255)] = ""
    statuses: Annotated[tuple[InstanceStatus, ...], Meta(max_length=16)] = ()  # empty: all but deleted
    after: Text = ""  # those after this id
    limit: Annotated[int, Meta(ge=1, le=1000)] = 500
    count: bool = False  # also return the total number


class InstancesFound(Message, frozen=True, kw_only=True):
    instances: LongList[Instance]
    more: bool = False  # ask again, after `last`
    last: Text = ""
    count: Count = 0  # in all, where that was asked

"""Queries and answers about candidates, decisions, waiting requests, builds and instances."""

from typing import Annotated, Literal

from msgspec import Meta, field, structs

from bus.decisions import Decision, NearMiss, Removal
from bus.messages import Attempt, BuildPlaced, BuildRequested, Selection
from bus.parts import DecisionParts, PlacedParts, none_of
from bus.requests import BuildSpec, ResourceGroup
from bus.vocabulary import (
    MAX_GROUPS,
    Allocations,
    Cause,
    CellName,
    Compact,
    Count,
    FreeText,
    HostName,
    HostRoot,
    Id,
    InstanceId,
    Key,
    LargeMap,
    LongList,
    Mappings,
    Message,
    Ordinal,
    ProjectOrNone,
    ReplyTo,
    RequestId,
    Seconds,
    Shapes,
    ShortList,
    Text,
    TraitName,
    Value,
    Whole,
    Word,
    Zone,
)


class Candidate(Compact, frozen=True):
    """A host with complete allocations for a request, and the data that filters and weighers need."""

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
    # request group suffix → its providers
    mappings: Mappings = field(default_factory=dict)
    # Free amounts of each provider in `allocations`; empty if this is only the root: `free` has its amounts.
    free_by_provider: LargeMap[Text, LargeMap[Text, Whole]] = field(default_factory=dict)
    aggregates: LongList[Text] = ()  # aggregates of the root
    # Capacity of each provider in `allocations`; empty in messages, filled only within a scheduler's process.
    capacity_by_provider: LargeMap[Text, LargeMap[Text, Whole]] = field(default_factory=dict)


class FindCandidates(Message, frozen=True, kw_only=True):
    """A query for candidates: hosts with complete allocations that would fit now."""

    groups: Annotated[tuple[ResourceGroup, ...], Meta(min_length=1, max_length=MAX_GROUPS)]
    cell: Text = ""
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 256
    group_policy: Literal["none", "isolate"] = "none"  # isolate: groups with a suffix never share a provider
    # sets of suffixes of groups; in each set one provider is an ancestor of the others, or the same
    same_subtree: ShortList[ShortList[Text]] = ()
    root_required: ShortList[TraitName] = ()
    root_forbidden: ShortList[TraitName] = ()
    nested: bool = True  # False: never two providers of one tree, as in the API before 1.29
    zone: Zone = ""  # availability zone that the agent reported, or that one of the host's aggregates sets
    roots: LongList[Id] = ()  # only hosts with these roots; empty: any
    not_roots: LongList[Id] = ()
    isolated: ShortList[Text] = ()  # suffixes of groups that must be on different providers
    root_member_of: ShortList[ShortList[Id]] = ()  # the host is in at least one aggregate of every inner list
    root_not_member_of: ShortList[Id] = ()
    not_cells: LongList[Word] = ()  # cells to exclude because they are disabled


class CandidatesFound(Message, frozen=True, kw_only=True):
    """Candidates that answer FindCandidates, and how many hosts each part of the query removed."""

    seen: Ordinal  # the answer includes all changes up to this change number
    candidates: LongList[Candidate]
    fitting: Count  # total number of hosts that fit
    considered: Count
    removals: LongList[Removal] = ()
    nearest: LongList[NearMiss] = ()
    # there may be more candidates: more than `limit`, more than fit into a message, or too many to try all
    cut: bool = False


class HeldHost(Value, frozen=True, kw_only=True):
    """A host that a scheduler holds for a waiting request or move: later requests may not use it."""

    root: Id
    host: Text
    request: Id  # the waiting request or move
    project: Text
    since: Seconds  # since when the host is held
    until: Seconds  # end of the request's waiting time


class WaitingRequest(Value, frozen=True, kw_only=True):
    """A request or move that waits for capacity."""

    request: Id
    builds: LongList[Id] = ()  # some of the request's builds
    instances: Whole
    project: Text
    flavor: Text
    priority: Whole
    since: Seconds
    until: Seconds
    kind: Text  # equivalence class: such requests wait in one queue
    position: Whole  # queue position in the equivalence class
    lacks: Cause
    wakes: Cause = ""  # the event that causes a retry
    wakes_on: Key = ""  # key of the commits that cause a retry, if a rule refused the claim
    move: Text = ""  # the kind of move; empty: not a move, but a request for new instances
    # times by which the request gets a host with a probability of 50 % and 90 %, estimated from the recent
    # progress of its queue; None: unknown
    start_p50: Seconds | None = None
    start_p90: Seconds | None = None
    held: LongList[HeldHost] = ()  # the hosts that are held for the request


class WaitingKind(Compact, frozen=True):
    """The number of requests in one equivalence class that wait for capacity."""

    kind: Text
    flavor: Text
    requests: Whole
    instances: Whole


class FindWaiting(Message, frozen=True, kw_only=True):
    """A query for the requests that wait for free capacity, in the sequence in which they will be tried."""

    # only waiting requests with these ids, and waiting moves of instances with these ids
    requests: Annotated[tuple[RequestId, ...], Meta(max_length=1000)] = ()
    # only requests of this project; empty: of all projects
    project: ProjectOrNone = ""
    after: Count = 0  # number of requests to skip
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    projects: LongList[
        ProjectOrNone
    ] = ()  # also return the number of waiting requests of each of these projects
    on: Annotated[
        tuple[HostRoot, ...], Meta(max_length=1000)
    ] = ()  # also return the requests for which these hosts are held


class WaitingFound(Message, frozen=True, kw_only=True):
    """A page of waiting requests, and how many wait in all."""

    waiting: LongList[WaitingRequest]
    count: Count  # total number
    kinds: LongList[WaitingKind] = ()  # the equivalence classes with the most waiting requests
    rescued: Count = 0  # requests that got a host only by the periodic retry
    more: Count | None = None  # `after` of the next page; None: this is the last page
    # project → number of waiting requests, for the query's `projects` that have any
    by_project: LargeMap[Text, Count] = field(default_factory=dict)
    # project → number of requests in the backlog; empty if the query names `requests`
    backlog: LargeMap[Text, Count] = field(default_factory=dict)
    # project → its fraction of the resources of all requests that were evaluated in the last minute
    shares: LargeMap[Text, Annotated[float, Meta(ge=0, le=1)]] = field(default_factory=dict)
    holds: LongList[HeldHost] = ()  # for which requests the query's hosts (`on`) are held
    # project → weight of its share while requests are backlogged; "": the default of all projects, which is 1
    # if it is missing. Empty if the query names `requests`
    weights: LargeMap[Text, Count] = field(default_factory=dict)


class FindDecision(Message, frozen=True, kw_only=True):
    """A query for the decision that explains why a build or request has no host, or why a move waits."""

    id: InstanceId


class DecisionFound(Message, frozen=True, kw_only=True):
    """The decision about a request that got no host or waits for a host, from a scheduler's records."""

    known: bool = False
    request: BuildRequested | None = None  # the original request
    builds: LongList[Id] = ()
    reason: Cause = ""
    decision: Decision = Decision()
    at: Seconds = 0.0  # time of the decision, or start of waiting
    waits: bool = False
    until: Seconds = 0.0  # end of waiting
    wakes: Cause = ""  # the event that causes a retry
    parts: DecisionParts = none_of(DecisionParts)
    placed: BuildPlaced | None = None  # the last chosen host, for an instance that another system builds
    # times by which the waiting request gets a host with a probability of 50 % and 90 %
    # (in the backlog: is evaluated); None: unknown
    start_p50: Seconds | None = None
    start_p90: Seconds | None = None
    held: LongList[HeldHost] = ()  # hosts that the decision names and that are held for other requests now


class FindBuilds(Message, frozen=True, kw_only=True):
    """A query to a cell for the states of the given builds."""

    cell: CellName
    builds: Annotated[tuple[InstanceId, ...], Meta(min_length=1, max_length=100)]


class BuildStands(Value, frozen=True, kw_only=True):
    """The state of a build, from the records of its cell."""

    build: Id
    status: Text
    placed: BuildPlaced  # the build's placement, with the decision
    host: Text  # current or last host
    attempts: LongList[Attempt] = ()  # finished attempts
    reason: Cause = ""
    # The data of the instance from which a move begins.
    attempt: Count = 0  # attempt of the current guest
    generation: Ordinal | None = None  # generation of the consumer
    chosen: Selection | None = None  # current host and allocations
    spec: BuildSpec | None = None  # current flavor and image
    move: Id | None = None  # current or last move


def build_for_member(stands: BuildStands) -> BuildStands:
    """Return a build without the parts that name instances of other projects, for a member of its project."""
    placed = structs.replace(stands.placed, parts=stands.placed.parts.for_members())
    return structs.replace(stands, placed=placed)


class BuildsFound(Message, frozen=True, kw_only=True):
    """The states of the builds that the query named, as far as the cell has a record of them."""

    builds: LongList[BuildStands]


InstanceStatus = Literal[
    "building", "swapping", "active", "moving", "verifying", "shelved", "error", "deleting", "deleted"
]
# statuses of instances that occupy a host
PRESENT: tuple[InstanceStatus, ...] = ("building", "swapping", "active", "moving", "verifying", "deleting")


class Instance(Value, frozen=True, kw_only=True):
    """An instance as lists show it."""

    build: Id
    name: Text = ""
    status: Text
    cell: Word
    host: Text  # current or last host
    root: Text
    project: Text
    flavor: Text
    attempt: Count = 0  # number of attempts
    since: Seconds = 0.0  # start of the last attempt
    reason: Cause = ""
    parts: PlacedParts = none_of(PlacedParts)  # those of the message that placed it
    generation: Ordinal | None = None  # generation of the consumer


def instance_for_member(instance: Instance) -> Instance:
    """Return an instance as a member of its project may read it."""
    return structs.replace(instance, parts=instance.parts.for_members())


class FindInstances(Message, frozen=True, kw_only=True):
    """A query for a page of a cell's instances that meet all given conditions, sorted by id."""

    cell: CellName
    project: ProjectOrNone = ""  # empty: all projects
    host: HostName = ""  # name of the host, or id of its root
    name: FreeText = ""
    statuses: Annotated[tuple[InstanceStatus, ...], Meta(max_length=16)] = ()  # empty: all but deleted
    since: Seconds = 0.0  # only instances changed at this time or later; seconds since 1970
    reply_to: ReplyTo = ""  # only instances with this reply address in their build request
    after: FreeText = ""  # only ids after this one
    limit: Annotated[int, Meta(ge=1, le=1000)] = 500
    count: bool = False  # also return the total number


class InstancesFound(Message, frozen=True, kw_only=True):
    """A page of instances."""

    instances: LongList[Instance]
    more: bool = False  # there are further pages, after `last`
    last: Text = ""
    count: Count = 0  # total number, if `count` was set

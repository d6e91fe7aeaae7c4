"""Every question and its answer, grouped by whom it is asked of. Frozen structs as messages are."""

from typing import Annotated, Literal

from msgspec import Meta, field

from bus.aggregates import AggregateEdit, AggregateResult
from bus.cells import CellEdit, CellResult
from bus.messages import BuildPlaced, BuildRequested, Message
from bus.resources import (
    Consumer,
    Edit,
    EditResult,
    GroupEdit,
    GroupResult,
    LoadResult,
    Named,
    NameEdit,
    NameKind,
    NameResult,
    OwnerResult,
    Provider,
    ProviderLoad,
)
from bus.vocabulary import (
    Aggregate,
    Attempt,
    BuildSpec,
    Candidate,
    Cause,
    ClaimResult,
    ClassName,
    Compact,
    ConsumerClaim,
    Count,
    Decision,
    Id,
    Instance,
    InstanceStatus,
    NearMiss,
    Ordinal,
    PlacedThere,
    RankedHost,
    RegisteredCell,
    ReleaseResult,
    Removal,
    ResourceGroup,
    RoomLeft,
    Seconds,
    Selection,
    ServerGroup,
    TraitName,
    Value,
    WaitingKind,
    WaitingRequest,
    Word,
    Zone,
)


class OrderBy(Value, frozen=True, kw_only=True):
    """A weight: what is free of a class, or there is in all, from the least to the most of all that fit.

    A score is the sum of multiplier × (amount − lowest) / (highest − lowest).
    """

    resource_class: ClassName
    of: Literal["free", "total"] = "free"
    multiplier: Annotated[float, Meta(ge=-1e9, le=1e9)] = 1.0
    lowest: float | None = None  # where the scale begins, what is below counts as that; None: at the least
    highest: float | None = None  # where it ends; None: at the most of them


class FindCandidates(Message, frozen=True, kw_only=True):
    """What would fit now? `after` continues a search where the last page ended.

    Each host is on one page only while the question stays the same, `order` with its scale included: pages
    that are to join up name the scale of the first. Then a host whose room changes between two pages may come
    twice, or not at all; the others come once.
    """

    groups: Annotated[tuple[ResourceGroup, ...], Meta(min_length=1)]
    cell: str = ""
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 256
    after: Ordinal = 0
    seed: str = ""  # searches with other seeds start at other hosts, so they do not all meet at the same
    group_policy: Literal["none", "isolate"] = "none"  # isolate: groups with a suffix never share a provider
    same_subtree: tuple[
        tuple[str, ...], ...
    ] = ()  # sets of suffixes; one provider of a set is above its others
    root_required: tuple[TraitName, ...] = ()
    root_forbidden: tuple[TraitName, ...] = ()
    nested: bool = True  # False: never two providers of one tree, as in the API before 1.29
    per_host: Count = 1  # how many ways to use one host; 0: all there are
    zone: Zone = ""  # of the host itself, or by an aggregate it is in
    roots: tuple[Id, ...] = ()  # only these; empty: any
    not_roots: tuple[Id, ...] = ()
    # Best first by these, over all that fit, those alike in an order by the seed; empty: round from the seed
    order: Annotated[tuple[OrderBy, ...], Meta(max_length=64)] = ()
    isolated: tuple[str, ...] = ()  # suffixes of groups that never share a provider with one another
    root_member_of: tuple[tuple[Id, ...], ...] = ()  # aggregates of the host: every inner list is met by one
    root_not_member_of: tuple[Id, ...] = ()
    not_cells: tuple[Word, ...] = ()  # those that are disabled


class CandidatesFound(Message, frozen=True, kw_only=True):
    seen: Ordinal  # the last change this answer knows of
    candidates: tuple[Candidate, ...]
    fitting: Count  # how many there are in all
    considered: Count
    more: Ordinal | None = None  # ask again with after=more
    removals: tuple[Removal, ...] = ()
    nearest: tuple[NearMiss, ...] = ()
    cut: bool = False  # too many combinations: it was not looked through to the end
    order: tuple[OrderBy, ...] = ()  # as it was asked, with the scale that was used


class ClaimRequested(Message, frozen=True, kw_only=True):
    """Several claims of one order are taken together or not at all."""

    claims: Annotated[tuple[ConsumerClaim, ...], Meta(min_length=1, max_length=1000)]
    cell: str = ""  # that asks; empty: it is not asked from within one


class ClaimAnswered(Message, frozen=True, kw_only=True):
    results: tuple[ClaimResult, ...]  # one for each claim, in order


class ReleaseRequested(Message, frozen=True, kw_only=True):
    """Give back all this consumer holds. With `retire` it can never hold again: the end of a build.

    `generation` fences as in a claim: None says "it holds nothing", and only retires. Unless `fenced`,
    whatever it holds is given back. With `keep` it goes to the consumer of that name, as in a claim.
    """

    consumer: Id
    generation: Ordinal | None
    fenced: bool = True
    retire: Cause = ""
    unplaceable: bool = False  # with `retire`: it ends for want of a host
    keep: Id | None = None
    cell: str = ""  # that asks; empty: it is not asked from within one


class ReleaseAnswered(Message, frozen=True, kw_only=True):
    result: ReleaseResult


class FindWaiting(Message, frozen=True, kw_only=True):
    """Who waits for room, those who go first coming first."""

    requests: Annotated[tuple[Id, ...], Meta(max_length=1000)] = ()  # only these, if they wait
    project: Annotated[str, Meta(max_length=255)] = ""  # only its own; empty: everybody's
    after: Count = 0  # so many are passed over
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class WaitingFound(Message, frozen=True, kw_only=True):
    waiting: tuple[WaitingRequest, ...]
    count: Count  # in all
    kinds: tuple[WaitingKind, ...] = ()  # of which most wait
    rescued: Count = 0  # whom only the slow sweep found a host for, which no change had told of
    more: Count | None = None  # ask again with after=more


# What the API does to providers, for those on the bus


class FindProviders(Message, frozen=True, kw_only=True):
    """Providers that meet all of this, each by itself. Without any of it: all."""

    ids: tuple[Id, ...] = ()
    name: str = ""
    in_tree: Id | None = None
    like: ResourceGroup | None = None  # resources it could give now, traits, aggregates
    parts: tuple[Literal["inventories", "traits", "aggregates", "owner"], ...] = (
        "inventories",
        "traits",
        "aggregates",
    )
    agents: tuple[Word, ...] = ()  # of trees that one of these reports
    after: str = ""  # with a limit: in the order of their ids, those behind this one
    limit: Count = 0  # 0: all of them, which must fit into one message
    cell: str = ""  # that asks; empty: it is not asked from within one


class ProvidersFound(Message, frozen=True, kw_only=True):
    providers: tuple[Provider, ...]


class EditRequested(Message, frozen=True, kw_only=True):
    edit: Edit


class EditAnswered(Message, frozen=True, kw_only=True):
    result: EditResult


class OwnerEditRequested(Message, frozen=True, kw_only=True):
    """A root belongs to this cell from now on, whoever has it, and its next report counts whatever its
    sequence: what undoes a report that never should have been believed."""

    root: Id
    cell: Word


class OwnerEditAnswered(Message, frozen=True, kw_only=True):
    result: OwnerResult


class LoadProviders(Message, frozen=True, kw_only=True):
    """Make or change all these, parents before children. Each tree is taken as a whole or refused with why.

    Classes, traits and aggregates nobody knew are made; providers that are not named stay as they are.
    """

    providers: Annotated[tuple[ProviderLoad, ...], Meta(min_length=1, max_length=20_000)]


class ProvidersLoaded(Message, frozen=True, kw_only=True):
    results: tuple[LoadResult, ...]  # one for each, in order


class FindAllocations(Message, frozen=True, kw_only=True):
    """What these consumers hold, or who holds what of these providers (then only that is told)."""

    consumers: tuple[Id, ...] = ()
    providers: tuple[Id, ...] = ()
    cell: str = ""  # that asks; empty: it is not asked from within one


class AllocationsFound(Message, frozen=True, kw_only=True):
    consumers: tuple[Consumer, ...]  # those who hold something
    generations: dict[str, int]  # of every provider that is named


class FindUsages(Message, frozen=True, kw_only=True):
    """What a project uses in all, by consumer type; None counts as `unknown`."""

    project: Annotated[str, Meta(min_length=1, max_length=255)]
    user: str = ""


class UsagesFound(Message, frozen=True, kw_only=True):
    used: dict[str, dict[str, int]]  # type → class → amount
    consumers: dict[str, int]  # type → how many


class FindNames(Message, frozen=True, kw_only=True):
    """Resource classes or traits, in the order of their numbers; those among `names`, beginning so."""

    kind: NameKind
    names: tuple[str, ...] | None = None
    prefix: str = ""
    associated: bool | None = None  # traits: that some provider has, or none


class NamesFound(Message, frozen=True, kw_only=True):
    names: tuple[Named, ...]


class NameEditRequested(Message, frozen=True, kw_only=True):
    """Make, rename (classes only) or drop a custom class or trait."""

    kind: NameKind
    edit: NameEdit


class NameEditAnswered(Message, frozen=True, kw_only=True):
    result: NameResult


class FindGroups(Message, frozen=True, kw_only=True):
    """Server groups that are all of this, with who is in them and where. Without any of it: all."""

    ids: tuple[Id, ...] = ()
    project: str = ""
    name: str = ""
    after: str = ""  # in the order of their ids, those behind this one
    limit: Count = 0  # 0: all of them, which must fit into one message
    members: Annotated[tuple[Id, ...], Meta(max_length=1000)] = ()  # that one of these is in


class GroupsFound(Message, frozen=True, kw_only=True):
    groups: tuple[ServerGroup, ...]


class GroupEditRequested(Message, frozen=True, kw_only=True):
    """Make or drop a server group."""

    edit: GroupEdit


class GroupEditAnswered(Message, frozen=True, kw_only=True):
    result: GroupResult


class FindAggregates(Message, frozen=True, kw_only=True):
    """Aggregates that meet all of this; without any of it: all. In the order of their ids."""

    ids: tuple[Id, ...] = ()
    name: str = ""
    host: str = ""  # that this host is in: as its owner calls it, its root's name or id
    key: str = ""  # with metadata under this key
    after: str = ""  # those behind this id
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class AggregatesFound(Message, frozen=True, kw_only=True):
    seen: Ordinal  # the last change this answer knows of
    aggregates: tuple[Aggregate, ...]
    hosts: dict[str, int] = field(default_factory=dict)  # id → how many are in it, where there are any
    more: bool = False  # ask again, after the last of these


class AggregateEditRequested(Message, frozen=True, kw_only=True):
    edit: AggregateEdit


class AggregateEditAnswered(Message, frozen=True, kw_only=True):
    result: AggregateResult


class FindCells(Message, frozen=True, kw_only=True):
    """All cells: those that are registered, and those that somebody reported hosts of."""

    counted: bool = True  # how much is in each, too; False: the registered alone


class CellsFound(Message, frozen=True, kw_only=True):
    seen: Ordinal  # the last change this answer knows of
    cells: tuple[RegisteredCell, ...]  # by their names
    hosts: dict[str, int] = field(default_factory=dict)  # cell → how many are in it, where there are any
    instances: dict[str, int] = field(default_factory=dict)  # cell → how many hold something there


class CellEditRequested(Message, frozen=True, kw_only=True):
    edit: CellEdit


class CellEditAnswered(Message, frozen=True, kw_only=True):
    result: CellResult


# What a cell is asked


class FindBuilds(Message, frozen=True, kw_only=True):
    """How do these builds stand in this cell?"""

    cell: Word
    builds: Annotated[tuple[Id, ...], Meta(min_length=1, max_length=100)]


class FindInstances(Message, frozen=True, kw_only=True):
    """Builds of this cell that are all of this, in the order of their ids; a page of them."""

    cell: Word
    project: Annotated[str, Meta(max_length=255)] = ""  # empty: everybody's
    host: Annotated[str, Meta(max_length=255)] = ""  # its name, or its root's id
    name: Annotated[str, Meta(max_length=255)] = ""
    statuses: Annotated[tuple[InstanceStatus, ...], Meta(max_length=16)] = ()  # none: all but the deleted
    after: str = ""  # those behind this id
    limit: Annotated[int, Meta(ge=1, le=1000)] = 500
    count: bool = False  # say how many there are in all, too


# Who acts on which bare-metal node of a cell


class NodeLent(Compact, frozen=True):
    """A node on which the one who asked may act, or may no more."""

    root: Id
    epoch: Ordinal  # of its ownership: it fences orders and reports; 0: the node is another's


class LeaseAsked(Message, frozen=True, kw_only=True):
    """An agent is alive. For how long may it act, and on which nodes?"""

    cell: Word
    agent: Word
    pool: Word  # the agent that selections name, in whose place several act
    run: Annotated[str, Meta(max_length=64)]  # which run of it: two of one name never act at once
    epoch: Ordinal = 0  # of the lease it has; 0: none
    seen: Ordinal = 0  # it has taken in what changed up to this version, and has stopped what it lost by it
    leaves: bool = False  # it acts no more: its lease is over


class LeaseAnswered(Message, frozen=True, kw_only=True):
    refused: Cause = ""  # why there is none now
    epoch: Ordinal = 0  # another one than before: nothing of before is its own any more but what is named
    seconds: Seconds = 0.0  # for so long from the moment when it asked
    version: Ordinal = 0  # what it has seen when it has taken this in
    nodes: tuple[NodeLent, ...] = ()  # those that changed
    more: bool = False  # ask again at once: there are more of them
    tells: bool = False  # it is the one to tell which nodes there are


class NodesTold(Message, frozen=True, kw_only=True):
    """Which nodes there are of those behind `after`, up to and with `upto`: these and no others."""

    cell: Word
    agent: Word
    pool: Word
    nodes: Annotated[tuple[Id, ...], Meta(max_length=10_000)]
    after: str = ""
    upto: str = ""  # empty: to the end


class NodesTaken(Message, frozen=True, kw_only=True):
    new: Count = 0
    gone: Count = 0


class FindAgents(Message, frozen=True, kw_only=True):
    """Who acts on the bare-metal nodes of this cell?"""

    cell: Word


class AgentStands(Value, frozen=True, kw_only=True):
    """An agent that shares nodes with others."""

    agent: Word
    pool: Word
    alive: bool  # false: its lease is over
    disabled: bool
    epoch: Ordinal  # how often it came to have a lease
    lease: Seconds
    heard: Seconds  # when last, since 1970
    free: Count = 0  # nodes without an instance
    occupied: Count = 0  # nodes that stay with it: an instance is there, comes or goes
    leaving: Count = 0  # of all these, those it is to stop acting on


class AgentsFound(Message, frozen=True, kw_only=True):
    agents: tuple[AgentStands, ...]
    nodes: Count = 0  # in all


class AgentEditRequested(Message, frozen=True, kw_only=True):
    """disable: it gets no free nodes, and those it has go to others. rehome: all it has does, or these nodes,
    with what is on them; as soon as it is certain that it acts on them no more."""

    cell: Word
    agent: Word
    edit: Literal["disable", "enable", "rehome"]
    to: str = ""  # rehome: to this one; empty: as the ring says
    nodes: Annotated[tuple[Id, ...], Meta(max_length=10_000)] = ()  # rehome: these; none: all


class AgentEditAnswered(Message, frozen=True, kw_only=True):
    refused: Cause = ""
    moved: Count = 0  # nodes that are another's now
    waiting: Count = 0  # nodes that will be, when it has stopped or its lease is over


class FindDecision(Message, frozen=True, kw_only=True):
    """Why has this build, or request, no host?"""

    id: Id


class DecisionFound(Message, frozen=True, kw_only=True):
    """What schedulers know of one that got no host, or that waits for one."""

    known: bool = False
    request: BuildRequested | None = None  # as it was asked
    builds: tuple[Id, ...] = ()
    reason: Cause = ""
    decision: Decision = Decision()
    at: Seconds = 0.0  # when it was decided; of one that waits, since when it does
    waits: bool = False
    until: Seconds = 0.0  # it waits
    wakes: Cause = ""  # what would make it be looked at again


class WhatIf(Message, frozen=True, kw_only=True):
    """What would become of this request now? Nothing is claimed."""

    request: BuildRequested
    best: Annotated[int, Meta(ge=1, le=64)] = 8  # hosts to be named, the best first
    room: bool = False  # how many more are there room for, in all?


class WhatIfAnswered(Message, frozen=True, kw_only=True):
    fits: bool
    refusal: Cause = ""  # it cannot be meant
    flavor: Count = 0  # 0: the flavor asked for; n: the nth of or_else
    placed: tuple[PlacedThere, ...] = ()  # where its instances would go
    best: tuple[RankedHost, ...] = ()  # who is best for one of them
    decision: Decision = Decision()  # of the first of them; or why there is no host
    room: tuple[RoomLeft, ...] = ()
    cut: Cause = ""  # why there may be more room than that


class BuildStands(Value, frozen=True, kw_only=True):
    """A build as its cell knows it."""

    build: Id
    status: str
    placed: BuildPlaced  # with the decision that chose its host
    host: str  # the one it is on, or was last
    attempts: tuple[Attempt, ...] = ()  # those that are over
    reason: Cause = ""
    # What a move begins from.
    attempt: Count = 0  # of its guest
    generation: Ordinal | None = None  # of its consumer
    chosen: Selection | None = None  # where it is, by placement
    spec: BuildSpec | None = None  # what it is by now
    move: Id | None = None  # the one it is in, or was in last


class InstancesFound(Message, frozen=True, kw_only=True):
    instances: tuple[Instance, ...]
    more: bool = False  # ask again, after `last`
    last: str = ""
    count: Count = 0  # in all, where that was asked


class BuildsFound(Message, frozen=True, kw_only=True):
    builds: tuple[BuildStands, ...]  # those that the cell knows, and that were placed

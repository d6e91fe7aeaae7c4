"""The messages that workers and clients publish, by purpose. New fields get defaults; no field is renamed."""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from bus.claims import Choice
from bus.decisions import Decision
from bus.domains import Closed, Labels
from bus.parts import PlacedParts, RequestParts, none_of
from bus.reports import HostState, ProviderReport, Reshaping
from bus.requests import BuildSpec, Flavor, Hints, Image, InstanceName, ResourceGroup
from bus.vocabulary import (
    MAX_GROUPS,
    UNSAID_ID,
    AggregateId,
    Allocations,
    Amount,
    Cause,
    CellName,
    CellOrNone,
    Count,
    FreeText,
    HostName,
    Id,
    InstanceId,
    LargeMap,
    LongList,
    Mappings,
    Message,
    Name,
    NewInstanceId,
    NewRequestId,
    Note,
    Number,
    Ordinal,
    ProjectId,
    Properties,
    ReplyTo,
    Seconds,
    ShortList,
    SmallMap,
    Text,
    TraitName,
    UserId,
    Value,
    Weight,
    Word,
    Zone,
)


class BuildRequested(Message, frozen=True, kw_only=True):
    """Build the instances of this request: all or none, unless `at_least` names a smaller number. Each
    instance is a build.
    """

    request: NewRequestId
    instances: Annotated[tuple[NewInstanceId, ...], Meta(min_length=1, max_length=1000)]
    flavor: Flavor
    image: Image | None = None
    project: ProjectId = UNSAID_ID
    user: UserId = UNSAID_ID
    zone: Zone = ""
    cell: CellOrNone = ""
    aggregates: ShortList[ShortList[AggregateId]] = ()
    alternates: Annotated[int, Meta(ge=0, le=10)] = 2
    metadata: Properties = field(default_factory=dict)
    reply_to: ReplyTo = ""
    hints: Hints = Hints()
    or_else: Annotated[tuple[Flavor, ...], Meta(max_length=8)] = ()  # tried if the first fits no host
    not_aggregates: ShortList[AggregateId] = ()
    forced_host: HostName = ""  # name or root of the host to use, even if filters reject it
    wanted_host: HostName = ""  # name or root of the only host to consider; filters apply
    ignore_hosts: ShortList[HostName] = ()  # names or roots of hosts not to use
    preferred_traits: SmallMap[TraitName, Weight] = field(default_factory=dict)  # trait → weight
    at_least: Count = 0  # smallest number of instances to build; 0: all of them
    name: InstanceName = ""  # display name of the instances
    # resources in addition to the flavor's, such as for ports and accelerators
    groups: Annotated[tuple[ResourceGroup, ...], Meta(max_length=MAX_GROUPS)] = ()
    # sets of suffixes of `groups`; in each set one provider is an ancestor of the others, or the same
    same_subtree: ShortList[ShortList[FreeText]] = ()
    root_required: ShortList[TraitName] = ()  # traits of the host, in addition to flavor and image
    root_forbidden: ShortList[TraitName] = ()
    not_cells: ShortList[CellName] = ()  # cells whose hosts are not considered
    parts: RequestParts = none_of(RequestParts)
    strict: bool = False  # refuse the request if it has fields that are not known
    unknown_fields: ShortList[Note] = ()  # notes about such fields, made by the worker that received it


class Selection(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A host chosen for a build, with the allocations to claim there."""

    root: Id
    host: Text
    agent: Word
    choice: Choice
    mappings: Mappings = field(default_factory=dict)  # suffix of a group → providers; empty: only the root


class BuildPlaced(Message, frozen=True, kw_only=True):
    """The host claimed for a build; the cell must create the instance there. No alternate is claimed."""

    build: Id
    request: Id
    cell: Word
    chosen: Selection
    generation: Ordinal  # generation of the consumer after the claim; the next claim must state it
    alternates: LongList[Selection] = ()
    spec: BuildSpec
    decision: Decision = Decision()
    reply_to: ReplyTo = ""
    requested: Seconds = 0.0  # when the request was published; 0: unknown
    waited_since: Seconds = 0.0  # when the request began to wait for a host; 0: it did not wait
    parts: PlacedParts = none_of(PlacedParts)
    content: Text = ""  # digest of the request's content; empty: unknown


class BuildUnplaceable(Message, frozen=True, kw_only=True):
    """No host was found for this request, for the given reason. All of its builds end with this message."""

    request: Id
    instances: LongList[Id]
    reason: Cause
    decision: Decision = Decision()
    reply_to: ReplyTo = ""


class BuildConflict(Message, frozen=True, kw_only=True):
    """A repeated request is refused, because the first request with its id has other content. The first
    request and its instances do not change.
    """

    request: Id
    instances: LongList[Id]  # those of the first request; they do not end with this message
    cell: Word  # the cell of these instances; "-": a scheduler noticed the conflict
    reason: Cause
    fields: ShortList[Text] = ()  # names of fields that differ, as far as they are known
    reply_to: ReplyTo = ""


class Attempt(Value, frozen=True, kw_only=True):
    """One attempt to build an instance on a host, and its outcome."""

    host: Text
    agent: Text = ""
    outcome: Literal["built", "failed", "refused", "timed out"]
    cause: Cause = ""
    started: Number = 0.0
    ended: Number = 0.0


class BuildEnded(Message, frozen=True, kw_only=True):
    """The end of a build for its client: active on a host, or error with its cause. Published again if
    repeated.
    """

    build: Id
    request: Id
    cell: Word
    status: Literal["active", "error"]
    host: Text = ""
    root: Text = ""
    agent: Text = ""
    reason: Cause = ""
    attempts: LongList[Attempt] = ()
    decision: Decision = Decision()
    reply_to: ReplyTo = ""


class BuildDeleteRequested(Message, frozen=True, kw_only=True):
    """A request to delete this instance and release its resources."""

    build: InstanceId
    cell: CellName
    reply_to: ReplyTo = ""
    strict: bool = False  # as in BuildRequested
    unknown_fields: ShortList[Note] = ()


class BuildDeleted(Message, frozen=True, kw_only=True):
    """An instance is deleted. Resources that its host may still use are released when the agent confirms the
    deletion, or when the conductor stops waiting for that.
    """

    build: Id
    cell: Word
    reply_to: ReplyTo = ""
    known: bool = True  # False: the cell has no record of the instance, and deletes it if it is placed later
    reason: Cause = ""  # why it was deleted, if no client requested that
    refused: Cause = ""  # why the request was refused; nothing is deleted then
    code: Text = ""  # code of the refusal (docs/reasons.md)
    notes: ShortList[Cause] = ()  # fields of the request that are not known


class BuildEndRequested(Message, frozen=True, kw_only=True):
    """A request to publish the end of this build again: because commits were lost, the client may have
    received nothing, or may last have received the end of the build in another cell.
    """

    build: Id
    cell: Word
    request: Id | None = None  # None: nothing is published if the cell has no record of the build
    why: Cause = ""  # why its claim has ended; published if the cell has no record of the build
    reply_to: ReplyTo = ""
    content: Text = ""  # digest of the content of the repeated request; empty: unknown


class BuildReshaped(Message, frozen=True, kw_only=True):
    """A reshape of the host's provider tree moved an instance's allocations, in unchanged amounts."""

    build: Id
    cell: Word
    root: Id
    generation: Ordinal  # new generation of the consumer
    number: Ordinal  # change number; of two messages the one with the higher number is valid
    at: Seconds = 0.0  # seconds since the epoch
    allocations: Allocations  # all new allocations of the instance


class BuildCancelRequested(Message, frozen=True, kw_only=True):
    """A request to stop the search for a host, for one build or for all builds of a waiting request."""

    build: InstanceId  # id of the build, or of a request
    reply_to: ReplyTo = ""
    anywhere: bool = False  # also delete builds that have a host: the request is forwarded to their cells
    # True: an unknown id is retired, so that a request that arrives later gets no host; False: only reported
    fence: bool = True
    strict: bool = False  # as in BuildRequested
    unknown_fields: ShortList[Note] = ()


class BuildCancelled(Message, frozen=True, kw_only=True):
    """The outcome of a BuildCancelRequested. For each build that waited, `build.unplaceable` follows."""

    build: Id  # the id in the request
    waited: bool = True  # False: the build did not wait for a host
    why: Cause = ""
    reply_to: ReplyTo = ""
    # build that has a host → cell to which the cancellation was forwarded
    passed_on: LargeMap[Id, Word] = field(default_factory=dict)
    known: bool = True  # False: no worker has a record of the id
    code: Text = ""  # code of a refusal (docs/reasons.md)
    notes: ShortList[Cause] = ()  # fields of the request that are not known


# Inside a cell: conductor ↔ agents


class GuestMessage(Message, frozen=True, kw_only=True):
    """The base class of orders and reports about the guest of an attempt of a build, on a host."""

    build: Id
    attempt: Amount  # an agent that has destroyed an attempt ignores orders of this and earlier attempts
    cell: Word
    agent: Word
    root: Id
    host: Text
    epoch: Ordinal = 0  # number of agents that a shared node has had so far; 0: one agent acts on the host

    def guest_fields(self) -> dict[str, Any]:
        """Return the fields that an order and the report about it have in common, by name."""
        return {name: getattr(self, name) for name in GuestMessage.__struct_fields__}


class GuestOrder(GuestMessage, frozen=True, kw_only=True, omit_defaults=True):
    """The base class of orders that create a guest on a host, or bring one there."""

    spec: BuildSpec
    allocations: Allocations = field(default_factory=dict)  # empty: the flavor's resources, from the root
    mappings: Mappings = field(default_factory=dict)  # as in Selection


class BuildOrdered(GuestOrder, frozen=True, kw_only=True):
    """An order to create a guest of this build on a host. Fields may be omitted: see `bus.agent_builds`."""

    adopt: bool = False  # the guest exists already: take it over


class DestroyOrdered(GuestMessage, frozen=True, kw_only=True):
    """An order to delete the guests of a build on a host, for all attempts up to and including this one."""

    above: Count = 0  # only guests of attempts with higher numbers are deleted
    grace: Seconds = 0.0  # time for the guest to stop before it is deleted


class AgentReported(GuestMessage, frozen=True, kw_only=True):
    """The outcome of an order to an agent, or its progress."""

    # overdue: made by the conductor itself, because the agent has not reported in time
    outcome: Literal["built", "failed", "destroyed", "progress", "overdue"]
    retry: bool = True  # failed: whether another host may succeed (reschedule); False: abort
    leftover: bool = False  # failed: parts of the guest may still exist, so its resources stay allocated
    cause: Cause = ""


class InventoryReported(Message, frozen=True, kw_only=True):
    """An agent's report of a provider tree; a report is ignored if its sequence does not increase."""

    root: Id
    host: Name
    cell: Word
    agent: Word
    zone: Zone = ""
    sequence: Ordinal
    providers: LongList[ProviderReport] = ()  # the whole tree, the root first
    gone: bool = False  # the root was deleted
    reshape: Reshaping | None = None  # allocations move with their inventory, in the same commit
    labels: Labels = field(default_factory=dict)  # labels of the host by level, such as rack → r7
    field_labels: Labels = field(default_factory=dict)  # labels from an Ironic node's fields, used last
    closed: Closed = ""  # why the host offers nothing, for the reasons of builds without a host


class HostReported(Message, frozen=True, kw_only=True):
    """A heartbeat: the state of some or all of an agent's hosts."""

    cell: Word
    agent: Word
    sequence: Ordinal  # of the heartbeats of one run, only the one with the highest sequence is valid
    run: Annotated[str, Meta(max_length=64)] = ""  # identifies a run of the agent; each run counts from 1
    period: Seconds = 10.0  # seconds until the next heartbeat
    # True: hosts that the agent does not report are up as long as its heartbeats arrive.
    # False: a host without a heartbeat is down, even if its agent reports other hosts.
    partial: bool = False
    hosts: LongList[HostState]


class SchedulerAlive(Message, frozen=True, kw_only=True):
    """A heartbeat of a scheduler. Each scheduler has a share of the hosts, and prefers these hosts."""

    scheduler: Word
    waits: Count = 0  # grows when a request starts or stops waiting, or lacks another resource


NO_CELL = "-"  # `ProcessRestarted.cell` of a process that belongs to no cell


class ProcessRestarted(Message, frozen=True, kw_only=True):
    """A process started again although it was never stopped: it crashed, or was killed."""

    process: Text  # such as conductor.c1
    machine: Text = ""
    cell: Word = NO_CELL
    at: Seconds  # when it started again


class HostFailed(Message, frozen=True, kw_only=True):
    """A hint for schedulers that a build attempt on this host failed; it may arrive twice or not at all."""

    root: Id
    host: Text
    agent: Word
    cell: Word
    build: Id
    attempt: Amount  # with `build`, identifies the failure: duplicates are ignored
    cause: Cause = ""
    ours: bool = True  # the host caused the failure; False: the request did, such as by a corrupt image

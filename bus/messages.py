"""Every published message, grouped by flow. Queries and answers are in the modules of their subject.

Each message is a frozen struct. Fields are added with defaults, and never renamed.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.claims import Choice
from bus.decisions import Decision
from bus.known_trees import KnownTrees
from bus.reports import HostState, ProviderReport, Reshaping
from bus.requests import BuildSpec, Flavor, Hints, Image, InstanceName
from bus.vocabulary import (
    END,
    UNSAID_ID,
    Allocations,
    Amount,
    Cause,
    Compact,
    Count,
    Id,
    KeystoneId,
    LargeMap,
    LongList,
    Mappings,
    Message,
    Name,
    Number,
    Ordinal,
    Properties,
    Seconds,
    ShortList,
    SmallMap,
    Text,
    TraitName,
    Value,
    Weight,
    Whole,
    Word,
    Zone,
)

ReplyTo = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_-]{0,64}" + END, description="a word to find your own answers by")
]
Wait = Annotated[
    str, Meta(pattern=r"^([0-9]{1,6}(s|m|h|d))?" + END, description="how long: 90s, 30m, 12h, 7d; or nothing")
]


# Boots: request → placed → ended


class BuildRequested(Message, frozen=True, kw_only=True):
    """Build these instances: all or none, unless `at_least` names a smaller number. Each instance is a build.

    A request with `wait` waits for free capacity: the highest priority first, then the oldest. A request
    without `wait` is placed or refused immediately, and its priority counts too: it is placed before waiting
    requests of a lower priority.
    """

    request: Id
    instances: Annotated[tuple[Id, ...], Meta(min_length=1, max_length=1000)]
    flavor: Flavor
    image: Image | None = None
    project: KeystoneId = UNSAID_ID
    user: KeystoneId = UNSAID_ID
    zone: Zone = ""
    cell: Text = ""
    aggregates: ShortList[ShortList[Id]] = ()
    alternates: Annotated[int, Meta(ge=0, le=10)] = 2
    metadata: Properties = field(default_factory=dict)
    reply_to: ReplyTo = ""
    hints: Hints = Hints()
    or_else: Annotated[tuple[Flavor, ...], Meta(max_length=8)] = ()  # in order, where the flavor fits nowhere
    not_aggregates: ShortList[Id] = ()
    forced_host: Text = ""  # this host, by name or root, whatever the filters decide
    wanted_host: Text = ""  # only this host
    ignore_hosts: ShortList[Text] = ()  # by name or root
    preferred_traits: SmallMap[TraitName, Weight] = field(default_factory=dict)  # and how much each counts
    at_least: Count = 0  # of the instances; 0: all of them
    wait: Wait = ""  # for room: 30m; empty: not at all
    priority: Annotated[int, Meta(ge=0, le=9)] = 0
    name: InstanceName = ""  # what people call them


class Selection(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A host to build on with its ready claim."""

    root: Id
    host: Text
    agent: Word
    choice: Choice
    # Group suffix → the providers that serve it; empty where the root serves all that is asked for by groups.
    mappings: Mappings = field(default_factory=dict)


class BuildPlaced(Message, frozen=True, kw_only=True):
    """A host is claimed for this build; the alternates, in the same cell, are not."""

    build: Id
    request: Id
    cell: Word
    chosen: Selection
    generation: Ordinal  # of the consumer, after the claim: fences the next one
    alternates: LongList[Selection] = ()
    spec: BuildSpec
    decision: Decision = Decision()
    reply_to: ReplyTo = ""


class BuildUnplaceable(Message, frozen=True, kw_only=True):
    """No host for this request, and exactly why. All its instances end here."""

    request: Id
    instances: LongList[Id]
    reason: Cause
    decision: Decision = Decision()
    reply_to: ReplyTo = ""


class Attempt(Value, frozen=True, kw_only=True):
    host: Text
    agent: Text = ""
    outcome: Literal["built", "failed", "refused", "timed out"]
    cause: Cause = ""
    started: Number = 0.0
    ended: Number = 0.0


class BuildEnded(Message, frozen=True, kw_only=True):
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
    """Take this build down and give its resources back."""

    build: Id
    cell: Word
    reply_to: ReplyTo = ""


class BuildDeleted(Message, frozen=True, kw_only=True):
    """The build is deleted. Resources that its host may still use are released when the agent reports so, or
    gives up.
    """

    build: Id
    cell: Word
    reply_to: ReplyTo = ""
    known: bool = True  # false: this cell does not know it (if it is placed here later, it ends at once)


class BuildReshaped(Message, frozen=True, kw_only=True):
    """Its host has another tree, and what it held is held of other providers there. Its claim is the same."""

    build: Id
    cell: Word
    root: Id
    generation: Ordinal  # of the consumer: of the claim this is about
    number: Ordinal  # the change that made it so: of two the higher counts
    at: Seconds = 0.0  # seconds since the epoch
    allocations: Allocations  # all it holds


class BuildCancelRequested(Message, frozen=True, kw_only=True):
    """End the wait of a build, or of all builds of a request."""

    build: Id  # or a request, whose builds wait
    reply_to: ReplyTo = ""
    anywhere: bool = False  # also if it has a host: the request is forwarded to its cell
    # With `anywhere`: an id without any record is retired, so that a request still on its way gets no host.
    # False: such an id is only reported as unknown.
    fence: bool = True


class BuildCancelled(Message, frozen=True, kw_only=True):
    """The outcome of a BuildCancelRequested. For a build that waited, `build.unplaceable` is published as
    well.
    """

    build: Id  # as it was named
    waited: bool = True  # false: it did not wait for a host
    why: Cause = ""
    reply_to: ReplyTo = ""
    # Builds that have a host → the cells that the cancellation was forwarded to
    passed_on: LargeMap[Id, Word] = field(default_factory=dict)
    known: bool = True  # false: no worker knows it yet


# Inside a cell: conductor ↔ agents


class BuildOrdered(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Build it on this host with these providers. See `bus.build_orders` for what an order leaves out."""

    build: Id
    attempt: Amount  # the agent's fence: an order at or below one it has destroyed is void
    cell: Word
    agent: Word
    root: Id
    host: Text
    spec: BuildSpec
    # What placement has given it; empty: the flavor's figures, of the root.
    allocations: Allocations = field(default_factory=dict)
    mappings: Mappings = field(default_factory=dict)  # as in Selection
    epoch: Ordinal = 0  # of the agent's right to act on that host, where several share hosts; 0: it has it
    adopt: bool = False  # nothing is to be built: it runs there, from before berth was


class DestroyOrdered(Message, frozen=True, kw_only=True):
    """Leave nothing of this build, up to this attempt, on that host."""

    build: Id
    attempt: Amount
    cell: Word
    agent: Word
    root: Id
    host: Text
    epoch: Ordinal = 0  # as in BuildOrdered
    above: Count = 0  # guests of attempts up to this one stay: the build goes back to them


class AgentReported(Message, frozen=True, kw_only=True):
    build: Id
    attempt: Amount
    cell: Word
    agent: Word
    root: Id
    host: Text
    # overdue is the conductor's reminder to itself: nothing was heard of this attempt in time
    outcome: Literal["built", "failed", "destroyed", "progress", "overdue"]
    retry: bool = True  # failed: another host may succeed (reschedule), or none can (abort)
    leftover: bool = False  # failed: something of it may still be there, and its room is kept until it is not
    cause: Cause = ""
    epoch: Ordinal = 0  # as in the order


# Resources and hosts, as their owners see them


class InventoryReported(Message, frozen=True, kw_only=True):
    """A whole provider tree. Among the reports of one root the highest sequence is valid; older ones change
    nothing.
    """

    root: Id
    host: Name
    cell: Word
    agent: Word
    zone: Zone = ""
    sequence: Ordinal
    providers: LongList[ProviderReport] = ()  # the root first; the whole tree
    gone: bool = False  # the root was deleted
    reshape: Reshaping | None = (
        None  # what is held of the old tree goes with its inventory, in the same commit
    )


class HostReported(Message, frozen=True, kw_only=True):
    """A heartbeat: the state of some or all of an agent's hosts."""

    cell: Word
    agent: Word
    sequence: Ordinal  # of one run of the agent the highest counts
    run: Annotated[str, Meta(max_length=64)] = ""  # which run of it: another one begins to count anew
    period: Seconds = 10.0  # the next one is due after so long
    # Reports name some hosts only, such as those that build: the others are as available as the agent. Else
    # a host without a heartbeat is down, although its agent reports other hosts.
    partial: bool = False
    hosts: LongList[HostState]


class SchedulerAlive(Message, frozen=True, kw_only=True):
    """Heartbeat of a scheduler. Each scheduler first considers its own share of the hosts."""

    scheduler: Word
    waits: Count = 0  # changes whenever a request begins or ends to wait, or lacks something else


class HostFailed(Message, frozen=True, kw_only=True):
    """An attempt on this host failed: a hint for schedulers. It may arrive twice, or not at all."""

    root: Id
    host: Text
    agent: Word
    cell: Word
    build: Id
    attempt: Amount  # with `build`: which failure it is
    cause: Cause = ""
    ours: bool = True  # it is the host's doing; false: the request's, as a corrupt image is


class ProviderChange(Compact, frozen=True):
    """A provider after a commit. With `reshaped` its tree has changed; otherwise only its usage."""

    provider: Text
    root: Text
    generation: Whole
    used: LargeMap[Text, Whole]
    reshaped: bool = False
    gone: bool = False
    sequence: Whole = -1  # reshaped: of the last report of its tree, by which its owner knows whose it was


class PlacementChanged(Message, frozen=True, kw_only=True):
    """One commit, numbered without gaps. A reader that misses a number reads everything again.

    A change without providers is about aggregates or cells, from a placement of an older version: query
    them.
    """

    number: Ordinal
    changes: LongList[ProviderChange]
    aggregates: LongList[Aggregate] = ()  # with their new names and metadata
    cells: LongList[RegisteredCell] = ()  # with their new states
    trees: KnownTrees | None = None  # the reshaped trees if they are few and small; query the others


MOST_SPOKEN = 1000


class IronicSpoke(Message, frozen=True, kw_only=True):
    """Ironic published something about these nodes; a hint for pages. It may arrive twice, or not at all."""

    nodes: Annotated[tuple[Id, ...], Meta(max_length=MOST_SPOKEN)] = ()  # empty: too many to name them


class NodeChanged(Message, frozen=True, kw_only=True):
    """An Ironic-style node state change from a tool or a simulation. The latest `at` counts."""

    event: Word
    node: Id
    at: Number  # seconds since the epoch
    name: Text = ""
    cell: Word
    agent: Word
    resource_class: Text | None
    provision_state: Text | None
    power_state: Text | None = "power off"
    maintenance: bool = False
    instance_uuid: Text | None = None
    traits: ShortList[Text] = ()
    zone: Zone = ""
    deleted: bool = False

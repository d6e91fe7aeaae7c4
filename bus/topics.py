"""The switchboard: every topic and query, declared once with its message, its key and a sentence."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from bus import messages as m
from bus import moves as v
from bus import queries as q
from bus.known_trees import ChangesFound, FindChanges, FindTrees, TreesFound
from bus.messages import Message

M = TypeVar("M", bound=Message, covariant=True)
A = TypeVar("A", bound=Message, contravariant=True)
R = TypeVar("R", bound=Message, covariant=True)

ANYONE = "anyone"  # who is a source or a target: people and programs outside berth as well

_FIELD = re.compile(r"\{(\w+)\}")


def _filled(parts: list[str], message: Message) -> str:
    """Words of a key and, every other one, a field of the message. Quick: it is done for every message."""
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 3:
        return f"{parts[0]}{getattr(message, parts[1])}{parts[2]}"
    return "".join([str(getattr(message, part)) if at % 2 else part for at, part in enumerate(parts)])


@dataclass(frozen=True, eq=False)
class Topic(Generic[M]):
    """Where one type of message travels. `{fields}` of the pattern are filled from the message.

    `expected`: somebody must hear it; publishing it to nobody is an error.
    `outsiders`: people read it with tools of their own, so it never travels in frames unless `reply_to` asks.
    """

    pattern: str
    message: type[M]
    says: str
    source: str  # who says it, and who hears it, for people
    target: str
    expected: bool = True
    outsiders: bool = False

    def key(self, message: Message) -> str:
        """The routing key of this message."""
        key = _filled(self._parts, message)
        reply_to = getattr(message, "reply_to", "") if self.outsiders else ""
        return f"{key}.{reply_to}" if reply_to else key

    @cached_property
    def _parts(self) -> list[str]:
        return _FIELD.split(self.pattern)

    def framed(self, message: Message) -> bool:
        """May it share a frame with others?"""
        return not self.outsiders or bool(getattr(message, "reply_to", ""))

    def at(self, **fields: str) -> "Address[M]":
        """The topic narrowed to one cell, agent, event or reply_to; what is not named matches any."""
        key = _FIELD.sub(lambda field: fields.get(field[1], "*"), self.pattern)
        if self.outsiders:
            reply_to = fields.get("reply_to")
            key = key if reply_to is None else f"{key}.{reply_to}" if reply_to else key
        return Address(self, key)


@dataclass(frozen=True, eq=False)
class Address(Generic[M]):
    """What a queue binds to: a topic, and a key that may hold * and #."""

    topic: Topic[M]
    key: str


@dataclass(frozen=True, eq=False)
class Query(Generic[A, R]):
    """A question that is answered once, by one of those who can; no answer in time raises NoAnswer.

    `{fields}` of its name are filled from the question: so one cell is asked, or one asks from `within`. Who
    asks for a cell that nobody answers for hears Unroutable; who asks from within one, NoAnswer: not yet.
    """

    name: str
    asks: type[A]
    answer: type[R]
    says: str
    source: str  # who asks, and who answers
    target: str
    within: bool = False

    @property
    def narrowed(self) -> bool:
        """Has every cell a key of its own for it?"""
        return "{" in self.name

    def cell(self, question: Message) -> str:
        """The cell that asks this question or is asked; empty: none."""
        return str(getattr(question, "cell", "")) if self.narrowed else ""

    def key(self, question: Message) -> str:
        """What the queue is named by that holds this question."""
        return _filled(self._parts, question)

    @cached_property
    def _parts(self) -> list[str]:
        return _FIELD.split(self.name)

    def at(self, **fields: str) -> str:
        return _FIELD.sub(lambda field: fields[field[1]], self.name) if self.narrowed else self.name


BUILD_REQUESTED = Topic("build.requested", m.BuildRequested, "build these instances", ANYONE, "scheduler")
BUILD_PLACED = Topic(
    "build.placed.{cell}",
    m.BuildPlaced,
    "host, ready claim, alternates",
    "scheduler",
    "that cell's conductor",
)
BUILD_UNPLACEABLE = Topic(
    "build.unplaceable",
    m.BuildUnplaceable,
    "no host, and exactly why",
    "scheduler",
    "whoever asked",
    expected=False,
    outsiders=True,
)
BUILD_ENDED = Topic(
    "build.ended.{cell}",
    m.BuildEnded,
    "active or error, host, every attempt with its cause",
    "conductor",
    "whoever asked",
    expected=False,
    outsiders=True,
)
BUILD_DELETE = Topic(
    "build.delete.{cell}",
    m.BuildDeleteRequested,
    "take it down, give its resources back",
    ANYONE,
    "that cell's conductor",
)
BUILD_DELETED = Topic(
    "build.deleted.{cell}",
    m.BuildDeleted,
    "it is down; what its host still holds of it is freed when that is gone",
    "conductor",
    "whoever asked",
    expected=False,
    outsiders=True,
)
BUILD_RESHAPED = Topic(
    "build.reshaped.{cell}",
    m.BuildReshaped,
    "its host was reshaped: what it holds now",
    "placement",
    "that cell's conductor",
    expected=False,
)
BUILD_CANCEL = Topic(
    "build.cancel",
    m.BuildCancelRequested,
    "no host for it any longer; where it has one, take it down",
    ANYONE,
    "scheduler",
)
BUILD_CANCELLED = Topic(
    "build.cancelled",
    m.BuildCancelled,
    "it waits no more, or did not wait; or its cell was told",
    "scheduler",
    "whoever asked",
    expected=False,
    outsiders=True,
)
MOVE_REQUESTED = Topic(
    "move.requested", v.MoveRequested, "move this instance, or change what it is", ANYONE, "scheduler"
)
MOVE_PLACED = Topic(
    "move.placed.{cell}",
    v.MovePlaced,
    "where an instance moves, with the ready claim",
    "scheduler",
    "that cell's conductor",
)
MOVE_REFUSED = Topic(
    "move.refused",
    v.MoveRefused,
    "it does not move, and exactly why",
    "scheduler",
    "whoever asked",
    expected=False,
    outsiders=True,
)
MOVE_STEER = Topic(
    "move.steer.{cell}", v.MoveSteered, "confirm, revert, abort or force it", ANYONE, "that cell's conductor"
)
MOVE_TOLD = Topic(
    "move.told.{cell}",
    v.MoveTold,
    "how a move stands, or why it cannot be steered so",
    "conductor",
    "whoever asked",
    expected=False,
    outsiders=True,
)
MOVE_ENDED = Topic(
    "move.ended.{cell}",
    v.MoveEnded,
    "how a move ended, with every phase, attempt and cause",
    "conductor",
    "whoever asked",
    expected=False,
    outsiders=True,
)
AGENT_MOVE = Topic(
    "agent.move.{cell}.{agent}", v.MoveOrdered, "do this phase of a move", "conductor", "agent"
)
AGENT_MOVED = Topic(
    "agent.moved.{cell}",
    v.MoveReported,
    "a phase is done or failed, progress; overdue",
    "agent, conductor",
    "conductor",
)
AGENT_BUILD = Topic("agent.build.{cell}.{agent}", m.BuildOrdered, "build it", "conductor", "agent")
AGENT_DESTROY = Topic(
    "agent.destroy.{cell}.{agent}", m.DestroyOrdered, "leave nothing of it", "conductor", "agent"
)
AGENT_REPORT = Topic(
    "agent.report.{cell}",
    m.AgentReported,
    "built, failed (reschedule or abort), destroyed, progress; overdue",
    "agent, and the conductor's own timer",
    "conductor",
)
SCHEDULER_ALIVE = Topic(
    "scheduler.alive",
    m.SchedulerAlive,
    "a scheduler takes part: it looks first at a share of the hosts",
    "scheduler",
    "every scheduler",
    expected=False,
)
INVENTORY_REPORTED = Topic(
    "inventory.reported.{cell}",
    m.InventoryReported,
    "a provider tree as its owner sees it",
    "agents, ironic_sync",
    "placement",
)
HOST_REPORTED = Topic(
    "host.reported.{cell}",
    m.HostReported,
    "service state, load, metrics, heartbeat",
    "agents",
    "every scheduler",
    expected=False,
)
HOST_FAILED = Topic(
    "host.failed.{cell}",
    m.HostFailed,
    "an attempt on this host failed, and whose fault it was",
    "conductor",
    "every scheduler",
    expected=False,
)
PLACEMENT_CHANGED = Topic(
    "placement.changed",
    m.PlacementChanged,
    "what changed, in commit order, numbered",
    "placement",
    ANYONE,
    expected=False,
    outsiders=True,
)
IRONIC_NODE = Topic(
    "ironic.node.{cell}.{event}",
    m.NodeChanged,
    "Ironic-style state change from simulation and tools",
    ANYONE,
    "ironic_sync",
)

FIND_CANDIDATES = Query(
    "placement.candidates",
    q.FindCandidates,
    q.CandidatesFound,
    "what would fit",
    ANYONE,
    "placement",
)
CLAIM = Query(
    "placement.claim",
    q.ClaimRequested,
    q.ClaimAnswered,
    "take, or swap what is held for something else",
    "scheduler",
    "placement",
)
RELEASE = Query(
    "placement.release",
    q.ReleaseRequested,
    q.ReleaseAnswered,
    "give back, and retire",
    "scheduler",
    "placement",
)

PROVIDERS = Query(
    "placement.providers",
    q.FindProviders,
    q.ProvidersFound,
    "which providers there are, with what they have",
    ANYONE,
    "placement",
)
CELL_CLAIM = Query(
    "placement.claim.{cell}",
    q.ClaimRequested,
    q.ClaimAnswered,
    "the same, asked from within a cell: of its own builds, on its own hosts",
    "that cell's conductor",
    "placement",
    within=True,
)
CELL_RELEASE = Query(
    "placement.release.{cell}",
    q.ReleaseRequested,
    q.ReleaseAnswered,
    "the same, asked from within a cell: of what is held on its own hosts",
    "that cell's conductor",
    "placement",
    within=True,
)
CELL_PROVIDERS = Query(
    "placement.providers.{cell}",
    q.FindProviders,
    q.ProvidersFound,
    "the same, asked from within a cell: of its own hosts",
    "that cell's agents",
    "placement",
    within=True,
)
EDIT = Query(
    "placement.edit",
    q.EditRequested,
    q.EditAnswered,
    "make, change or drop a provider, its inventory, traits, aggregates; reshape",
    ANYONE,
    "placement",
)
EDIT_OWNER = Query(
    "placement.owner",
    q.OwnerEditRequested,
    q.OwnerEditAnswered,
    "give a root to a cell, whoever has it; its reports are counted anew",
    ANYONE,
    "placement",
)
LOAD = Query(
    "placement.load",
    q.LoadProviders,
    q.ProvidersLoaded,
    "make or change thousands of providers at once",
    ANYONE,
    "placement",
)
ALLOCATIONS = Query(
    "placement.allocations",
    q.FindAllocations,
    q.AllocationsFound,
    "who holds what",
    ANYONE,
    "placement",
)
CELL_ALLOCATIONS = Query(
    "placement.allocations.{cell}",
    q.FindAllocations,
    q.AllocationsFound,
    "the same, asked from within a cell: of those who hold something of its own hosts",
    "that cell's agents",
    "placement",
    within=True,
)
USAGES = Query("placement.usages", q.FindUsages, q.UsagesFound, "what a project uses", ANYONE, "placement")
NAMES = Query(
    "placement.names", q.FindNames, q.NamesFound, "resource classes and traits", ANYONE, "placement"
)
EDIT_NAME = Query(
    "placement.name",
    q.NameEditRequested,
    q.NameEditAnswered,
    "make, rename or drop a custom class or trait",
    ANYONE,
    "placement",
)
GROUPS = Query(
    "placement.groups",
    q.FindGroups,
    q.GroupsFound,
    "server groups, and where their members are",
    ANYONE,
    "placement",
)
EDIT_GROUP = Query(
    "placement.group",
    q.GroupEditRequested,
    q.GroupEditAnswered,
    "make or drop a server group",
    ANYONE,
    "placement",
)
AGGREGATES = Query(
    "placement.aggregates",
    q.FindAggregates,
    q.AggregatesFound,
    "which aggregates there are, and what is said of them",
    ANYONE,
    "placement",
)
EDIT_AGGREGATE = Query(
    "placement.aggregate",
    q.AggregateEditRequested,
    q.AggregateEditAnswered,
    "make, name, describe or drop an aggregate; put hosts into it, take them out",
    ANYONE,
    "placement",
)
CELLS = Query(
    "placement.cells",
    q.FindCells,
    q.CellsFound,
    "which cells there are, which are disabled, and how much is in each",
    ANYONE,
    "placement",
)
EDIT_CELL = Query(
    "placement.cell",
    q.CellEditRequested,
    q.CellEditAnswered,
    "register a cell, enable or disable it; or end it, with its hosts",
    ANYONE,
    "placement",
)

FIND_BUILDS = Query(
    "cell.builds.{cell}",
    q.FindBuilds,
    q.BuildsFound,
    "how builds stand, and why they are where they are",
    ANYONE,
    "that cell's conductor",
)
FIND_INSTANCES = Query(
    "cell.instances.{cell}",
    q.FindInstances,
    q.InstancesFound,
    "its builds by project, host, status or name, a page at a time",
    ANYONE,
    "that cell's conductor",
)
FIND_MOVES = Query(
    "cell.moves.{cell}",
    v.FindMoves,
    v.MovesFound,
    "its moves: what is under way, and how others went",
    ANYONE,
    "that cell's conductor",
)
LEASE = Query(
    "cell.lease.{cell}",
    q.LeaseAsked,
    q.LeaseAnswered,
    "for how long an agent may act on bare metal, and on which nodes",
    "that cell's agents",
    "that cell's conductor",
    within=True,
)
TELL_NODES = Query(
    "cell.nodes.{cell}",
    q.NodesTold,
    q.NodesTaken,
    "which bare-metal nodes there are, for several agents to share",
    "that cell's agents",
    "that cell's conductor",
    within=True,
)
FIND_AGENTS = Query(
    "cell.agents.{cell}",
    q.FindAgents,
    q.AgentsFound,
    "who acts on its bare-metal nodes, and on how many",
    ANYONE,
    "that cell's conductor",
)
EDIT_AGENT = Query(
    "cell.agent.{cell}",
    q.AgentEditRequested,
    q.AgentEditAnswered,
    "one of them gets no more nodes, or others get those it has",
    ANYONE,
    "that cell's conductor",
)
DECISION = Query(
    "scheduler.decision",
    q.FindDecision,
    q.DecisionFound,
    "why a build has no host, or waits for one",
    ANYONE,
    "scheduler",
)
WHAT_IF = Query(
    "scheduler.what_if",
    q.WhatIf,
    q.WhatIfAnswered,
    "what would become of a request now",
    ANYONE,
    "scheduler",
)
TREES = Query(
    "placement.trees",
    FindTrees,
    TreesFound,
    "provider trees by the thousand, for a memory elsewhere",
    "replica",
    "placement",
)
CHANGES = Query(
    "placement.changes",
    FindChanges,
    ChangesFound,
    "what was committed after a number, and the last there is",
    "replica",
    "placement",
)

WAITING = Query(
    "scheduler.waiting",
    q.FindWaiting,
    q.WaitingFound,
    "who waits for room, and what for",
    ANYONE,
    "scheduler",
)

TOPICS: tuple[Topic[Any], ...] = (
    BUILD_REQUESTED,
    BUILD_PLACED,
    BUILD_UNPLACEABLE,
    BUILD_ENDED,
    BUILD_DELETE,
    BUILD_DELETED,
    BUILD_RESHAPED,
    BUILD_CANCEL,
    BUILD_CANCELLED,
    MOVE_REQUESTED,
    MOVE_PLACED,
    MOVE_REFUSED,
    MOVE_STEER,
    MOVE_TOLD,
    MOVE_ENDED,
    AGENT_BUILD,
    AGENT_DESTROY,
    AGENT_REPORT,
    AGENT_MOVE,
    AGENT_MOVED,
    SCHEDULER_ALIVE,
    INVENTORY_REPORTED,
    HOST_REPORTED,
    HOST_FAILED,
    PLACEMENT_CHANGED,
    IRONIC_NODE,
)
QUERIES: tuple[Query[Any, Any], ...] = (
    FIND_CANDIDATES, CLAIM, RELEASE, PROVIDERS, CELL_CLAIM, CELL_RELEASE, CELL_PROVIDERS, EDIT, EDIT_OWNER,
    LOAD, ALLOCATIONS, CELL_ALLOCATIONS, USAGES, NAMES, EDIT_NAME, GROUPS, EDIT_GROUP, AGGREGATES,
    EDIT_AGGREGATE, CELLS, EDIT_CELL, FIND_BUILDS, FIND_INSTANCES, FIND_MOVES, LEASE, TELL_NODES, FIND_AGENTS,
    EDIT_AGENT, WAITING, DECISION, WHAT_IF, TREES, CHANGES,
)  # fmt: skip

TOPIC_OF: dict[type[Message], Topic[Any]] = {topic.message: topic for topic in TOPICS}

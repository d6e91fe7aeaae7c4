"""The switchboard: every topic and query, declared once with its message, its key and a sentence."""

from typing import Any

from bus.adoption import BuildAdopted, BuildAdoptRequested
from bus.aggregates import AggregateEditAnswered, AggregateEditRequested, AggregatesFound, FindAggregates
from bus.cells import CellEditAnswered, CellEditRequested, CellsFound, FindCells
from bus.claims import ClaimAnswered, ClaimRequested, ReleaseAnswered, ReleaseRequested
from bus.clients import (
    ClientAnswered,
    ClientAsked,
    ClientEditAnswered,
    ClientEditRequested,
    ClientRequested,
    ClientsFound,
    FindClients,
)
from bus.groups import FindGroups, GroupEditAnswered, GroupEditRequested, GroupsFound
from bus.guests import GuestsAsked, GuestsTold
from bus.host_health import FindHostHealth, HostHealthFound
from bus.known_changes import ChangesFound, FindChanges
from bus.known_trees import FindTrees, TreesFound
from bus.leases import (
    AgentEditAnswered,
    AgentEditRequested,
    AgentsFound,
    FindAgents,
    LeaseAnswered,
    LeaseAsked,
    NodesTaken,
    NodesTold,
)
from bus.messages import (
    AgentReported,
    BuildCancelled,
    BuildCancelRequested,
    BuildDeleted,
    BuildDeleteRequested,
    BuildEnded,
    BuildOrdered,
    BuildPlaced,
    BuildRequested,
    BuildReshaped,
    BuildUnplaceable,
    DestroyOrdered,
    HostFailed,
    HostReported,
    InventoryReported,
    IronicSpoke,
    NodeChanged,
    PlacementChanged,
    SchedulerAlive,
)
from bus.moves import (
    FindMoves,
    HandoverReported,
    HandoverTold,
    MoveEnded,
    MoveOrdered,
    MovePlaced,
    MoveRefused,
    MoveReported,
    MoveRequested,
    MovesFound,
    MoveSteered,
    MoveTold,
)
from bus.names import FindNames, NameEditAnswered, NameEditRequested, NamesFound
from bus.queries import (
    BuildsFound,
    CandidatesFound,
    DecisionFound,
    FindBuilds,
    FindCandidates,
    FindDecision,
    FindInstances,
    FindWaiting,
    InstancesFound,
    WaitingFound,
    WhatIf,
    WhatIfAnswered,
    WhatIfMoves,
    WhatIfMovesAnswered,
)
from bus.resources import (
    AllocationsFound,
    EditAnswered,
    EditRequested,
    FindAllocations,
    FindProviders,
    FindUsages,
    LoadProviders,
    OwnerEditAnswered,
    OwnerEditRequested,
    ProvidersFound,
    ProvidersLoaded,
    UsagesFound,
)
from bus.routing import ANYONE, Query, Topic
from bus.vocabulary import Message

BUILD_REQUESTED = Topic("build.requested", BuildRequested, "build these instances", ANYONE, "scheduler")
BUILD_PLACED = Topic(
    "build.placed.{cell}",
    BuildPlaced,
    "host, ready claim, alternates",
    "scheduler",
    "that cell's conductor",
)
BUILD_UNPLACEABLE = Topic(
    "build.unplaceable",
    BuildUnplaceable,
    "no host, and exactly why",
    "scheduler",
    "whoever asked",
    expected=False,
    outsiders=True,
)
BUILD_ENDED = Topic(
    "build.ended.{cell}",
    BuildEnded,
    "active or error, host, every attempt with its cause",
    "conductor",
    "whoever asked",
    expected=False,
    outsiders=True,
)
BUILD_DELETE = Topic(
    "build.delete.{cell}",
    BuildDeleteRequested,
    "take it down, give its resources back",
    ANYONE,
    "that cell's conductor",
)
BUILD_DELETED = Topic(
    "build.deleted.{cell}",
    BuildDeleted,
    "it is down; what its host still holds of it is freed when that is gone",
    "conductor",
    "whoever asked",
    expected=False,
    outsiders=True,
)
BUILD_ADOPT = Topic(
    "build.adopt.{cell}",
    BuildAdoptRequested,
    "it is there already, as placement holds it: it is yours",
    ANYONE,
    "that cell's conductor",
)
BUILD_ADOPTED = Topic(
    "build.adopted.{cell}",
    BuildAdopted,
    "it is this cell's now, or was, or exactly why not",
    "conductor",
    "whoever asked",
    expected=False,
    outsiders=True,
)
BUILD_RESHAPED = Topic(
    "build.reshaped.{cell}",
    BuildReshaped,
    "its host was reshaped: what it holds now",
    "placement",
    "that cell's conductor",
    expected=False,
)
BUILD_CANCEL = Topic(
    "build.cancel",
    BuildCancelRequested,
    "no host for it any longer; where it has one, take it down",
    ANYONE,
    "scheduler",
)
BUILD_CANCELLED = Topic(
    "build.cancelled",
    BuildCancelled,
    "it waits no more, or did not wait; or its cell was told",
    "scheduler",
    "whoever asked",
    expected=False,
    outsiders=True,
)
MOVE_REQUESTED = Topic(
    "move.requested", MoveRequested, "move this instance, or change what it is", ANYONE, "scheduler"
)
MOVE_PLACED = Topic(
    "move.placed.{cell}",
    MovePlaced,
    "where an instance moves, with the ready claim",
    "scheduler",
    "that cell's conductor",
)
MOVE_REFUSED = Topic(
    "move.refused",
    MoveRefused,
    "it does not move, and exactly why",
    "scheduler",
    "whoever asked",
    expected=False,
    outsiders=True,
)
MOVE_STEER = Topic(
    "move.steer.{cell}", MoveSteered, "confirm, revert, abort or force it", ANYONE, "that cell's conductor"
)
MOVE_TOLD = Topic(
    "move.told.{cell}",
    MoveTold,
    "how a move stands, or why it cannot be steered so",
    "conductor",
    "whoever asked",
    expected=False,
    outsiders=True,
)
MOVE_ENDED = Topic(
    "move.ended.{cell}",
    MoveEnded,
    "how a move ended, with every phase, attempt and cause",
    "conductor",
    "whoever asked",
    expected=False,
    outsiders=True,
)
MOVE_HANDOVER = Topic(
    "move.handover.{cell}",
    HandoverTold,
    "let it go to another cell; or how that ended there",
    "scheduler",
    "the conductor of the cell it leaves",
)
MOVE_HALF = Topic(
    "move.half.{cell}",
    HandoverReported,
    "what half of a move between cells has come to in this one",
    "conductor",
    "scheduler",
)
AGENT_MOVE = Topic("agent.move.{cell}.{agent}", MoveOrdered, "do this phase of a move", "conductor", "agent")
AGENT_MOVED = Topic(
    "agent.moved.{cell}",
    MoveReported,
    "a phase is done or failed, progress; overdue",
    "agent, conductor",
    "conductor",
)
AGENT_BUILD = Topic("agent.build.{cell}.{agent}", BuildOrdered, "build it", "conductor", "agent")
AGENT_DESTROY = Topic(
    "agent.destroy.{cell}.{agent}", DestroyOrdered, "leave nothing of it", "conductor", "agent"
)
AGENT_ASKED = Topic(
    "agent.asked.{cell}.{agent}",
    GuestsAsked,
    "which guests of these builds do you have?",
    ANYONE,
    "agent",
)
AGENT_TOLD = Topic(
    "agent.told.{cell}",
    GuestsTold,
    "these, by its own books",
    "agent",
    "whoever asked",
    expected=False,
    outsiders=True,
)
AGENT_REPORT = Topic(
    "agent.report.{cell}",
    AgentReported,
    "built, failed (reschedule or abort), destroyed, progress; overdue",
    "agent, and the conductor's own timer",
    "conductor",
)
SCHEDULER_ALIVE = Topic(
    "scheduler.alive",
    SchedulerAlive,
    "a scheduler takes part: it looks first at a share of the hosts",
    "scheduler",
    "every scheduler",
    expected=False,
)
INVENTORY_REPORTED = Topic(
    "inventory.reported.{cell}",
    InventoryReported,
    "a provider tree as its owner sees it",
    "agents, ironic_sync",
    "placement",
)
HOST_REPORTED = Topic(
    "host.reported.{cell}",
    HostReported,
    "service state, load, metrics, heartbeat",
    "agents",
    "every scheduler",
    expected=False,
)
HOST_FAILED = Topic(
    "host.failed.{cell}",
    HostFailed,
    "an attempt on this host failed, and whose fault it was",
    "conductor",
    "every scheduler",
    expected=False,
)
PLACEMENT_CHANGED = Topic(
    "placement.changed",
    PlacementChanged,
    "what changed, in commit order, numbered",
    "placement",
    ANYONE,
    expected=False,
    outsiders=True,
)
IRONIC_NODE = Topic(
    "ironic.node.{cell}.{event}",
    NodeChanged,
    "Ironic-style state change from simulation and tools",
    ANYONE,
    "ironic_sync",
)
IRONIC_SPOKE = Topic(
    "ironic.spoke",
    IronicSpoke,
    "Ironic said something of these nodes: who shows them reads them again",
    "ironic_sync",
    "control_room",
    expected=False,
)

CLIENT_REQUESTED = Topic(
    "client.{client}",
    ClientRequested,
    "boot, delete, move or steer, as a client bound to its projects",
    ANYONE,
    "scheduler",
)

FIND_CANDIDATES = Query(
    "placement.candidates",
    FindCandidates,
    CandidatesFound,
    "what would fit",
    ANYONE,
    "placement",
)
CLAIM = Query(
    "placement.claim",
    ClaimRequested,
    ClaimAnswered,
    "take, or swap what is held for something else",
    "scheduler",
    "placement",
)
RELEASE = Query(
    "placement.release",
    ReleaseRequested,
    ReleaseAnswered,
    "give back, and retire",
    ANYONE,
    "placement",
)
PROVIDERS = Query(
    "placement.providers",
    FindProviders,
    ProvidersFound,
    "which providers there are, with what they have",
    ANYONE,
    "placement",
)
CELL_CLAIM = Query(
    "placement.claim.{cell}",
    ClaimRequested,
    ClaimAnswered,
    "the same, asked from within a cell: of its own builds, on its own hosts",
    "that cell's conductor",
    "placement",
    within=True,
)
CELL_RELEASE = Query(
    "placement.release.{cell}",
    ReleaseRequested,
    ReleaseAnswered,
    "the same, asked from within a cell: of what is held on its own hosts",
    "that cell's conductor",
    "placement",
    within=True,
)
CELL_PROVIDERS = Query(
    "placement.providers.{cell}",
    FindProviders,
    ProvidersFound,
    "the same, asked from within a cell: of its own hosts",
    "that cell's agents",
    "placement",
    within=True,
)
EDIT = Query(
    "placement.edit",
    EditRequested,
    EditAnswered,
    "make, change or drop a provider, its inventory, traits, aggregates; reshape",
    ANYONE,
    "placement",
)
EDIT_OWNER = Query(
    "placement.owner",
    OwnerEditRequested,
    OwnerEditAnswered,
    "give a root to a cell, whoever has it; its reports are counted anew",
    ANYONE,
    "placement",
)
LOAD = Query(
    "placement.load",
    LoadProviders,
    ProvidersLoaded,
    "make or change thousands of providers at once",
    ANYONE,
    "placement",
)
ALLOCATIONS = Query(
    "placement.allocations",
    FindAllocations,
    AllocationsFound,
    "who holds what",
    ANYONE,
    "placement",
)
CELL_ALLOCATIONS = Query(
    "placement.allocations.{cell}",
    FindAllocations,
    AllocationsFound,
    "the same, asked from within a cell: of those who hold something of its own hosts",
    "that cell's agents",
    "placement",
    within=True,
)
USAGES = Query("placement.usages", FindUsages, UsagesFound, "what a project uses", ANYONE, "placement")
NAMES = Query("placement.names", FindNames, NamesFound, "resource classes and traits", ANYONE, "placement")
EDIT_NAME = Query(
    "placement.name",
    NameEditRequested,
    NameEditAnswered,
    "make, rename or drop a custom class or trait",
    ANYONE,
    "placement",
)
GROUPS = Query(
    "placement.groups",
    FindGroups,
    GroupsFound,
    "server groups, and where their members are",
    ANYONE,
    "placement",
)
EDIT_GROUP = Query(
    "placement.group",
    GroupEditRequested,
    GroupEditAnswered,
    "make or drop a server group",
    ANYONE,
    "placement",
)
AGGREGATES = Query(
    "placement.aggregates",
    FindAggregates,
    AggregatesFound,
    "which aggregates there are, and what is said of them",
    ANYONE,
    "placement",
)
EDIT_AGGREGATE = Query(
    "placement.aggregate",
    AggregateEditRequested,
    AggregateEditAnswered,
    "make, name, describe or drop an aggregate; put hosts into it, take them out",
    ANYONE,
    "placement",
)
CELLS = Query(
    "placement.cells",
    FindCells,
    CellsFound,
    "which cells there are, which are disabled, and how much is in each",
    ANYONE,
    "placement",
)
EDIT_CELL = Query(
    "placement.cell",
    CellEditRequested,
    CellEditAnswered,
    "register a cell, enable or disable it; or end it, with its hosts",
    ANYONE,
    "placement",
)

FIND_BUILDS = Query(
    "cell.builds.{cell}",
    FindBuilds,
    BuildsFound,
    "how builds stand, and why they are where they are",
    ANYONE,
    "that cell's conductor",
)
FIND_INSTANCES = Query(
    "cell.instances.{cell}",
    FindInstances,
    InstancesFound,
    "its builds by project, host, status or name, a page at a time",
    ANYONE,
    "that cell's conductor",
)
FIND_MOVES = Query(
    "cell.moves.{cell}",
    FindMoves,
    MovesFound,
    "its moves: what is under way, and how others went",
    ANYONE,
    "that cell's conductor",
)
LEASE = Query(
    "cell.lease.{cell}",
    LeaseAsked,
    LeaseAnswered,
    "for how long an agent may act on bare metal, and on which nodes",
    "that cell's agents",
    "that cell's conductor",
    within=True,
)
TELL_NODES = Query(
    "cell.nodes.{cell}",
    NodesTold,
    NodesTaken,
    "which bare-metal nodes there are, for several agents to share",
    "that cell's agents",
    "that cell's conductor",
    within=True,
)
FIND_AGENTS = Query(
    "cell.agents.{cell}",
    FindAgents,
    AgentsFound,
    "who acts on its bare-metal nodes, and on how many",
    ANYONE,
    "that cell's conductor",
)
EDIT_AGENT = Query(
    "cell.agent.{cell}",
    AgentEditRequested,
    AgentEditAnswered,
    "one of them gets no more nodes, or others get those it has",
    ANYONE,
    "that cell's conductor",
)
DECISION = Query(
    "scheduler.decision",
    FindDecision,
    DecisionFound,
    "why a build has no host, or waits for one",
    ANYONE,
    "scheduler",
)
WHAT_IF = Query(
    "scheduler.what_if",
    WhatIf,
    WhatIfAnswered,
    "what would become of a request now",
    ANYONE,
    "scheduler",
)
WHAT_IF_MOVES = Query(
    "scheduler.what_if_moves",
    WhatIfMoves,
    WhatIfMovesAnswered,
    "what would become of moves now",
    ANYONE,
    "scheduler",
)
HOST_HEALTH = Query(
    "scheduler.hosts",
    FindHostHealth,
    HostHealthFound,
    "which hosts are down, unknown or closed by their agents",
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
    FindWaiting,
    WaitingFound,
    "who waits for room, and what for",
    ANYONE,
    "scheduler",
)

CLIENT_ASKED = Query(
    "scheduler.client.{client}",
    ClientAsked,
    ClientAnswered,
    "what a client may read: builds, moves, decisions, usages of its own projects",
    ANYONE,
    "scheduler",
    of_client=True,
)
CLIENTS = Query(
    "scheduler.clients",
    FindClients,
    ClientsFound,
    "which clients there are, and the projects of each",
    ANYONE,
    "scheduler",
)
EDIT_CLIENT = Query(
    "scheduler.edit_client",
    ClientEditRequested,
    ClientEditAnswered,
    "bind a client to projects, or remove it",
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
    BUILD_ADOPT,
    BUILD_ADOPTED,
    BUILD_RESHAPED,
    BUILD_CANCEL,
    BUILD_CANCELLED,
    MOVE_REQUESTED,
    MOVE_PLACED,
    MOVE_REFUSED,
    MOVE_STEER,
    MOVE_TOLD,
    MOVE_ENDED,
    MOVE_HANDOVER,
    MOVE_HALF,
    AGENT_BUILD,
    AGENT_DESTROY,
    AGENT_REPORT,
    AGENT_MOVE,
    AGENT_MOVED,
    AGENT_ASKED,
    AGENT_TOLD,
    SCHEDULER_ALIVE,
    INVENTORY_REPORTED,
    HOST_REPORTED,
    HOST_FAILED,
    PLACEMENT_CHANGED,
    IRONIC_NODE,
    IRONIC_SPOKE,
    CLIENT_REQUESTED,
)
QUERIES: tuple[Query[Any, Any], ...] = (
    FIND_CANDIDATES, CLAIM, RELEASE, PROVIDERS, CELL_CLAIM, CELL_RELEASE, CELL_PROVIDERS, EDIT, EDIT_OWNER,
    LOAD, ALLOCATIONS, CELL_ALLOCATIONS, USAGES, NAMES, EDIT_NAME, GROUPS, EDIT_GROUP, AGGREGATES,
    EDIT_AGGREGATE, CELLS, EDIT_CELL, FIND_BUILDS, FIND_INSTANCES, FIND_MOVES, LEASE, TELL_NODES, FIND_AGENTS,
    EDIT_AGENT, WAITING, DECISION, WHAT_IF, WHAT_IF_MOVES, HOST_HEALTH, TREES, CHANGES,
    CLIENT_ASKED, CLIENTS, EDIT_CLIENT,
)  # fmt: skip

TOPIC_OF: dict[type[Message], Topic[Any]] = {topic.message: topic for topic in TOPICS}

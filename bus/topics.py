"""Topics and queries: the message type of each topic and query, and lists of all topics and all queries."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import attrgetter
from types import ModuleType
from typing import Any, Generic, Literal, TypeVar

from bus import (
    aggregates,
    audit_trail,
    cells,
    claims,
    decisions,
    domains,
    guests,
    host_health,
    ironic,
    messages,
    names,
    projects,
    queries,
    removed_agents,
    replication,
    resources,
)
from bus.vocabulary import Message

# The types of topics and queries: how a routing key is formed from a message, and matched to patterns.


M = TypeVar("M", bound=Message, covariant=True)
A = TypeVar("A", bound=Message, contravariant=True)
R = TypeVar("R", bound=Message, covariant=True)

ANYONE = "anyone"  # a sender or receiver: any worker, or a client outside berth

_ANSWERS = "client."  # the first word of the keys of answers to clients
_QUERIES = ("ask.", "reply.")  # the first words of the keys of queries, and of answers to berth's programs

_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, eq=False)
class Topic(Generic[M]):
    """A topic for one type of message. Its pattern contains fields of the message, such as `{cell}`.

    `expected`: a message without a consumer is an error. `outsiders`: AMQP clients outside berth subscribe to
    the topic too. Then the routing key of a message with `reply_to` ends with its `reply_to`, and a message
    without `reply_to` is sent as a separate AMQP message.

    `direct`: messages to a worker of the publisher's process bypass the broker. With "handled", the publisher
    waits until the message is handled: the publisher must be another worker, and the message that it handles
    must be at the broker. With "stored", the publisher has stored the data from which it can send the message
    again.

    `relayed`: an order to one agent; if agents share queues, the gateway of their cell relays it.
    """

    pattern: str
    message: type[M]
    says: str
    source: str  # who publishes, and in `target` who consumes: for documentation only
    target: str
    expected: bool = True
    outsiders: bool = False
    clients: bool = False  # registered clients may bind the topic
    direct: Literal["", "handled", "stored"] = ""
    relayed: bool = False
    of_client: bool = False  # each client has its own routing key

    def key(self, message: Message) -> str:
        """Return the routing key of a message of this topic."""
        key = self._key_of(message)
        reply_to = getattr(message, "reply_to", "") if self.outsiders else ""
        return f"{key}.{reply_to}" if reply_to else key

    @cached_property
    def _key_of(self) -> Callable[[Message], str]:
        return _filling(self.pattern)

    def framed(self, message: Message) -> bool:
        """Return whether a message of this topic may share one AMQP message with other messages."""
        return not self.outsiders or bool(getattr(message, "reply_to", ""))

    def at(self, **fields: str) -> "Address[M]":
        """Return an Address of the topic: a binding key with the given values of fields, and `*` for each
        omitted field.
        """
        key = _FIELD.sub(lambda field: fields.get(field[1], "*"), self.pattern)
        if self.outsiders:
            reply_to = fields.get("reply_to")
            key = key if reply_to is None else f"{key}.{reply_to}" if reply_to else key
        return Address(self, key)


@dataclass(frozen=True, eq=False)
class Address(Generic[M]):
    """A topic with a binding key, which may contain the wildcards * and #."""

    topic: Topic[M]
    key: str


@dataclass(frozen=True, eq=False)
class Query(Generic[A, R]):
    """A query, which one of several workers answers once. If no answer arrives in time, NoAnswer is raised.

    A query's name may contain fields of its message in braces, such as `{cell}`: the cell to which the query
    is sent. If `within` is true, `{cell}` is the cell that sends the query. If no worker consumes a query,
    NoAnswer is raised, or Unroutable if the name has a field and `within` is false.
    """

    name: str
    asks: type[A]
    answer: type[R]
    says: str
    source: str  # who sends the query, and in `target` who answers it: for documentation only
    target: str
    within: bool = False
    of_client: bool = False  # each client has its own routing key; keys of answers begin with client.NAME
    to_agents: bool = False  # agents answer the query; reply addresses have a prefix for such queries only

    @property
    def narrowed(self) -> bool:
        """Return whether the query has a separate routing key for each cell."""
        return "{" in self.name

    def cell(self, question: Message) -> str:
        """Return the cell (or client) in the routing key for a message of this query; empty if all cells
        share one key.
        """
        field = "client" if self.of_client else "cell"
        return str(getattr(question, field, "")) if self.narrowed else ""

    def key(self, question: Message) -> str:
        """Return the routing key for a message of this query, without the prefix `ask.`."""
        return self._key_of(question)

    @cached_property
    def _key_of(self) -> Callable[[Message], str]:
        return _filling(self.name)

    def at(self, **fields: str) -> str:
        """Return the name of the query with its fields filled, for example with the cell."""
        return _FIELD.sub(lambda field: fields[field[1]], self.name) if self.narrowed else self.name


def _filling(pattern: str) -> Callable[[Message], str]:
    """Return a function that makes the routing key of a message: `pattern`, such as `agent.{cell}`, with the
    message's value in place of each field in braces.
    """
    fields = _FIELD.findall(pattern)
    if not fields:
        return lambda message: pattern
    template, values = _FIELD.sub("%s", pattern), attrgetter(*fields)
    return lambda message: template % values(message)


def matches(pattern: str, key: str) -> bool:
    """Return whether a routing key matches an AMQP topic pattern: `*` is exactly one word, `#` any number."""
    if "*" not in pattern and "#" not in pattern:  # the most common case
        return pattern == key
    return _segments_match(pattern.split(".") if pattern else [], key.split(".") if key else [])


def _segments_match(pattern: list[str], segments: list[str]) -> bool:
    if not pattern:
        return not segments
    if pattern[0] == "#":
        return any(_segments_match(pattern[1:], segments[skip:]) for skip in range(len(segments) + 1))
    return bool(segments) and pattern[0] in ("*", segments[0]) and _segments_match(pattern[1:], segments[1:])


_CONDUCTOR = "that cell's conductor"
_AGENTS = "that cell's agents"
TopicMessage = TypeVar("TopicMessage", bound=Message)


def outcome(
    pattern: str, message: type[TopicMessage], meaning: str, source: str, *, clients: bool = True
) -> Topic[TopicMessage]:
    """Return a topic for the results of requests; a message that no client subscribes to is no error."""
    return Topic(
        pattern, message, meaning, source, "the client", expected=False, outsiders=True, clients=clients
    )


# fmt: off

BUILD_REQUESTED = Topic("build.requested", messages.BuildRequested, "build one or several instances", ANYONE,
    "scheduler")
BUILD_PLACED = Topic("build.placed.{cell}", messages.BuildPlaced,
    "the host of a build, with its claim and the alternates", "scheduler", _CONDUCTOR, direct="handled")
BUILD_UNPLACEABLE = outcome("build.unplaceable", messages.BuildUnplaceable,
    "no host was found for a request, with the reason", "scheduler")
BUILD_CONFLICT = outcome("build.conflict.{cell}", messages.BuildConflict,
    "a repeated request is refused: the first request with its id has other content",
    "scheduler, conductor")
BUILD_ENDED = outcome("build.ended.{cell}", messages.BuildEnded,
    "a build ended active or in error, with its host and all attempts", "conductor")
BUILD_DELETE = Topic("build.delete.{cell}", messages.BuildDeleteRequested,
    "delete an instance and release its resources", ANYONE, _CONDUCTOR)
BUILD_DELETED = outcome("build.deleted.{cell}", messages.BuildDeleted, "an instance was deleted",
    "conductor")
BUILD_END = Topic("build.end.{cell}", messages.BuildEndRequested,
    "publish the end of a build again", "scheduler, berth audit heal", _CONDUCTOR, expected=False)
BUILD_RESHAPED = Topic("build.reshaped.{cell}", messages.BuildReshaped,
    "the allocations of an instance after a reshape of its host", "placement", _CONDUCTOR, expected=False)
BUILD_CANCEL = Topic("build.cancel", messages.BuildCancelRequested,
    "stop waiting for a host; with `anywhere`, also delete instances that have one", ANYONE, "scheduler")
BUILD_CANCELLED = outcome("build.cancelled", messages.BuildCancelled, "end of a cancellation", "scheduler")
AGENT_BUILD = Topic("agent.build.{cell}.{agent}", messages.BuildOrdered, "create a guest", "conductor",
    "agent", direct="stored", relayed=True)
AGENT_DESTROY = Topic("agent.destroy.{cell}.{agent}", messages.DestroyOrdered,
    "delete a guest and everything left of it", ANYONE, "agent", direct="stored", relayed=True)
AGENT_REPORT = Topic("agent.report.{cell}", messages.AgentReported,
    "an order was carried out or failed, or its progress; the conductor's own timeout", "agent, conductor",
    "conductor")
AGENT_ASKED = Topic("agent.asked.{cell}.{agent}", guests.GuestsAsked,
    "query its guests, or the hosts that it reaches", ANYONE, "agent", relayed=True)
AGENT_GUESTS = outcome("agent.guests.{cell}", guests.GuestsReported,
    "the guests of an agent, from its own records, or the hosts that it reaches", "agent")
SCHEDULER_ALIVE = Topic("scheduler.alive", messages.SchedulerAlive, "heartbeat of a scheduler", "scheduler",
    "every scheduler", expected=False)
INVENTORY_REPORTED = Topic("inventory.reported.{cell}", messages.InventoryReported,
    "a whole provider tree, from the agent that owns it", "agents, ironic_sync", "placement",
    direct="handled")
HOST_REPORTED = Topic("host.reported.{cell}", messages.HostReported,
    "heartbeat of an agent: service state, load and metrics of its hosts", "agents", "every scheduler",
    expected=False)
HOST_FAILED = Topic("host.failed.{cell}", messages.HostFailed,
    "an attempt on a host failed, and whether the host caused it", "conductor", "every scheduler",
    expected=False)
PROCESS_RESTARTED = Topic("process.restarted.{cell}", messages.ProcessRestarted,
    "a process started again although it was never stopped", ANYONE, "scheduler", expected=False)
PLACEMENT_CHANGED = Topic("placement.changed", replication.PlacementChanged,
    "numbered changes of placement, in commit order", "placement", ANYONE, expected=False, outsiders=True)
IRONIC_NODE = Topic("ironic.node.{cell}.{event}", ironic.NodeChanged,
    "state change of an Ironic node, from a tool or the simulator", ANYONE, "ironic_sync")
IRONIC_SPOKE = Topic("ironic.spoke", ironic.IronicSpoke,
    "Ironic published events about these nodes: refresh pages that show them", "ironic_sync", "control_room",
    expected=False)

FIND_CANDIDATES = Query("placement.candidates", queries.FindCandidates, queries.CandidatesFound,
    "hosts and allocations that would fit", ANYONE, "placement")
CLAIM = Query("placement.claim", claims.ClaimRequested, claims.ClaimAnswered,
    "write or replace the allocations of consumers", "scheduler", "placement")
RELEASE = Query("placement.release", claims.ReleaseRequested, claims.ReleaseAnswered,
    "release the allocations of a consumer, and retire it", ANYONE, "placement")
PROVIDERS = Query("placement.providers", resources.FindProviders, resources.ProvidersFound,
    "providers with inventories, traits and aggregates", ANYONE, "placement")
CELL_CLAIM = Query("placement.claim.{cell}", claims.ClaimRequested, claims.ClaimAnswered,
    "`placement.claim` for a cell: its own builds on its own hosts only", _CONDUCTOR, "placement",
    within=True)
CELL_RELEASE = Query("placement.release.{cell}", claims.ReleaseRequested, claims.ReleaseAnswered,
    "`placement.release` for a cell: allocations on its own hosts only", _CONDUCTOR, "placement", within=True)
CELL_PROVIDERS = Query("placement.providers.{cell}", resources.FindProviders, resources.ProvidersFound,
    "`placement.providers` for a cell: its own hosts only", _AGENTS, "placement", within=True)
EDIT = Query("placement.edit", resources.EditRequested, resources.EditAnswered,
    "create, change or delete a provider, its inventories, traits or aggregates; reshape", ANYONE,
    "placement")
EDIT_OWNER = Query("placement.owner", resources.OwnerEditRequested, resources.OwnerEditAnswered,
    "assign a root provider to another cell", ANYONE, "placement")
EDIT_LABELS = Query("placement.labels", domains.LabelEditRequested, domains.LabelEditAnswered,
    "set or remove the labels of hosts by level (rack, row, ...)", ANYONE, "placement")
ALLOCATIONS = Query("placement.allocations", resources.FindAllocations, resources.AllocationsFound,
    "allocations by consumer or provider", ANYONE, "placement")
CELL_ALLOCATIONS = Query("placement.allocations.{cell}", resources.FindAllocations,
    resources.AllocationsFound, "`placement.allocations` for a cell: consumers on its own hosts only",
    _AGENTS, "placement", within=True)
USAGES = Query("placement.usages", resources.FindUsages, resources.UsagesFound,
    "resources that a project uses", ANYONE, "placement")
NAMES = Query("placement.names", names.FindNames, names.NamesFound, "classes or traits", ANYONE, "placement")
EDIT_NAME = Query("placement.name", names.NameEditRequested, names.NameEditAnswered,
    "create, rename or delete a custom resource class or trait", ANYONE, "placement")
AGGREGATES = Query("placement.aggregates", aggregates.FindAggregates, aggregates.AggregatesFound,
    "aggregates with their metadata", ANYONE, "placement")
EDIT_AGGREGATE = Query("placement.aggregate", aggregates.AggregateEditRequested,
    aggregates.AggregateEditAnswered, "create, change or delete an aggregate; add or remove its hosts",
    ANYONE, "placement")
CELLS = Query("placement.cells", cells.FindCells, cells.CellsFound,
    "cells with their states, hosts and instances", ANYONE, "placement")
EDIT_CELL = Query("placement.cell", cells.CellEditRequested, cells.CellEditAnswered,
    "register, enable, disable or delete a cell", ANYONE, "placement")
FIND_BUILDS = Query("cell.builds.{cell}", queries.FindBuilds, queries.BuildsFound,
    "states of builds, with the decisions that placed them", ANYONE, _CONDUCTOR)
FIND_INSTANCES = Query("cell.instances.{cell}", queries.FindInstances, queries.InstancesFound,
    "instances of a cell by project, host, status or name, page by page", ANYONE, _CONDUCTOR)
EDIT_AGENT = Query("cell.agent.{cell}", removed_agents.AgentEditRequested,
    removed_agents.AgentEditAnswered, "remove an agent that will not return, or restore it", ANYONE,
    _CONDUCTOR)
WAITING = Query("scheduler.waiting", queries.FindWaiting, queries.WaitingFound,
    "requests that wait for capacity, and what they lack", ANYONE, "scheduler")
REFUSED = Query("scheduler.refused", decisions.FindRefused, decisions.RefusedFound,
    "builds that ended without a host", ANYONE, "scheduler")
DECISION = Query("scheduler.decision", queries.FindDecision, queries.DecisionFound,
    "why a build has no host, or waits for one", ANYONE, "scheduler")
HOST_HEALTH = Query("scheduler.hosts", host_health.FindHostHealth, host_health.HostHealthFound,
    "hosts that are down, unknown or disabled by their agents", ANYONE, "scheduler")
TREES = Query("placement.trees", replication.FindTrees, replication.TreesFound,
    "provider trees, for a replica of placement's index", "replica", "placement")
CHANGES = Query("placement.changes", replication.FindChanges, replication.ChangesFound,
    "changes committed after a number, for a replica", "replica", "placement")
PROJECTS = Query("scheduler.projects", projects.FindProjects, projects.ProjectsFound,
    "the projects of builds and requests", ANYONE, "scheduler")
ACTS_RECORDED = Topic("act.recorded", audit_trail.ActsRecorded,
    "records of what people and programs requested, for the audit trail", ANYONE, "scheduler")
FIND_ACTS = Query("scheduler.acts", audit_trail.FindActs, audit_trail.ActsFound,
    "records of the audit trail", ANYONE, "scheduler")
# fmt: on

TOPICS: list[Topic[Any]] = []
QUERIES: list[Query[Any, Any]] = []
TOPIC_OF: dict[type[Message], Topic[Any]] = {}
TOPIC_NAMED: dict[str, Topic[Any]] = {}  # by the name of the message's class, as in an envelope
CLIENT_KEYS: list[str] = []  # patterns of the routing keys that clients publish with


def add(module: ModuleType | Mapping[str, Any]) -> None:
    """Add the topics and queries that are values of a module, such as the messages of a feature. A process
    adds those of all features before it makes a bus.
    """
    values = [*(module if isinstance(module, Mapping) else vars(module)).values()]
    for topic in values:
        if isinstance(topic, Topic):
            if topic.message in TOPIC_OF or any(topic.pattern == known.pattern for known in TOPICS):
                raise ValueError(f"{topic.pattern}: another topic has this pattern or message")
            TOPICS.append(topic)
            TOPIC_OF[topic.message] = TOPIC_NAMED[topic.message.__name__] = topic
            if topic.of_client:
                CLIENT_KEYS.append(topic.at().key)
    for query in values:
        if isinstance(query, Query):
            if any(query.name == known.name for known in QUERIES):
                raise ValueError(f"{query.name}: another query has this name")
            QUERIES.append(query)
            if query.of_client:
                CLIENT_KEYS.append(f"ask.{query.at(client='*')}")
    is_of_client.cache_clear()
    _has_outsiders.cache_clear()


@lru_cache(maxsize=4096)
def is_of_client(key: str) -> bool:
    """Return whether clients publish with this routing key, or bind by it what clients publish."""
    return any(matches(pattern, key) for pattern in CLIENT_KEYS)


def is_for_clients(type_: str, key: str) -> bool:
    """Return whether programs outside berth can bind queues by which they receive a message of this type with
    this routing key.
    """
    if (topic := TOPIC_NAMED.get(type_)) is not None:
        return topic.outsiders
    return not key.startswith(_QUERIES) and _has_outsiders(key)


@lru_cache(maxsize=1024)
def _has_outsiders(key: str) -> bool:
    if is_of_client(key):
        return False
    bound = (topic.at().key for topic in TOPICS if topic.outsiders)
    return key.startswith(_ANSWERS) or any(matches(f"{pattern}.#", key) for pattern in bound)


def receiver_of(key: str) -> str:
    """Return the client in the routing key of a message for clients; the last word if it has none."""
    if key.startswith(_ANSWERS):
        return key.split(".", 2)[1]
    return key.rpartition(".")[2].partition("_")[0]


add(globals())


def client_topics() -> list[Topic[Any]]:
    """Return the topics that a client may bind; the last word of the key is the client's name."""
    return [topic for topic in TOPICS if topic.clients]


def client_key(client: str, key: str) -> str:
    """Return the routing key for a client's results: `key` if it is the client's name, or begins with this
    name and `_`; else the client's name.
    """
    return key if key == client or key.startswith(f"{client}_") else client

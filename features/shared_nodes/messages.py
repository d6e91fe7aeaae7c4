"""Messages about agents that share a cell's Ironic nodes: which agent may act on which node at present."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, structs

from bus.acts import Act, Requested, as_named, sent
from bus.feature import MessagesPart
from bus.topics import ANYONE, Query
from bus.undo import NotUndoable, Past, UndoRule
from bus.vocabulary import Cause, Compact, Count, Id, LongList, Message, Ordinal, Seconds, Text, Value, Word


class NodeLent(Compact, frozen=True):
    """A bare-metal node on which the asking agent may act from now on, or may no longer act."""

    root: Id
    epoch: Ordinal  # lease epoch for orders and reports; 0: the agent may not act on the node any more


class LeaseAsked(Message, frozen=True, kw_only=True):
    """A query in which a bare-metal agent renews its lease and asks for the nodes on which it may act."""

    cell: Word
    agent: Word
    pool: Word  # name of the pool, which schedulers use in place of the name of an agent
    # differs in each process of the agent, so that two processes with one name never act at the same time
    run: Annotated[str, Meta(max_length=64)]
    epoch: Ordinal = 0  # epoch of the agent's current lease; 0: no lease
    # `version` of the last answer that the agent applied: it does not act on nodes that it has lost
    seen: Ordinal = 0
    leaves: bool = False  # the agent stops: its lease ends


class LeaseAnswered(Message, frozen=True, kw_only=True):
    """The answer to LeaseAsked: the agent's lease, and the bare-metal nodes that it gains or loses."""

    refused: Cause = ""  # why there is no lease
    epoch: Ordinal = 0  # if it has changed, the agent may act on the nodes in `nodes` only
    seconds: Seconds = 0.0  # duration of the lease, from the moment of the request
    version: Ordinal = 0  # the agent sends it as `seen` after applying this answer
    nodes: LongList[NodeLent] = ()  # nodes that the agent gains or loses
    more: bool = False  # there are further nodes: ask again immediately
    tells: bool = False  # True: this agent must send NodesReported for the pool


class NodesReported(Message, frozen=True, kw_only=True):
    """A bare-metal agent's list of all nodes of its pool with ids above `after` up to `upto`. Nodes that
    the list lacks were deleted.
    """

    cell: Word
    agent: Word
    pool: Word
    nodes: Annotated[tuple[Id, ...], Meta(max_length=10_000)]
    after: Text = ""
    upto: Text = ""  # empty: no upper limit


class NodesTaken(Message, frozen=True, kw_only=True):
    new: Count = 0
    gone: Count = 0


class FindAgents(Message, frozen=True, kw_only=True):
    cell: Word


class AgentStands(Value, frozen=True, kw_only=True):
    """The state of a bare-metal agent that shares a cell's nodes with other agents: its lease, without which
    it may not act on nodes, and the number of its nodes in each state.
    """

    agent: Word
    pool: Word
    alive: bool  # False: the agent's lease has expired
    disabled: bool
    epoch: Ordinal  # number of the agent's leases so far
    lease: Seconds
    asked_at: Seconds  # time of the agent's last LeaseAsked
    free: Count = 0  # nodes without an instance
    occupied: Count = 0  # nodes with an instance, or while one is created or deleted
    leaving: Count = 0  # nodes that are being moved to other agents


class AgentsFound(Message, frozen=True, kw_only=True):
    agents: LongList[AgentStands]
    nodes: Count = 0  # total number


class SharingEditRequested(Message, frozen=True, kw_only=True):
    """An operator's request about an agent that shares nodes. `disable`: the agent gets no free nodes
    (without an instance), and the free nodes that it has go to other agents; `enable` ends this. `rehome`
    assigns all its nodes, or `nodes`, with their instances to other agents, once this agent certainly does
    not act on them any more.
    """

    cell: Word
    agent: Word
    edit: Literal["disable", "enable", "rehome"]
    to: Text = ""  # rehome: destination agent; empty: those with the fewest nodes
    nodes: Annotated[tuple[Id, ...], Meta(max_length=10_000)] = ()  # rehome: nodes to move; empty: all


class SharingEditAnswered(Message, frozen=True, kw_only=True):
    refused: Cause = ""
    moved: Count = 0  # nodes that moved
    waiting: Count = 0  # nodes that move when the agent has stopped or its lease has expired


_AGENTS = "that cell's agents"
_CONDUCTOR = "that cell's conductor"

# fmt: off
LEASE = Query("cell.lease.{cell}", LeaseAsked, LeaseAnswered,
    "renew the lease of a bare-metal agent, and learn its nodes", _AGENTS, _CONDUCTOR, within=True)
REPORT_NODES = Query("cell.nodes.{cell}", NodesReported, NodesTaken,
    "report which bare-metal nodes exist, to divide them among agents", _AGENTS, _CONDUCTOR, within=True)
FIND_AGENTS = Query("cell.agents.{cell}", FindAgents, AgentsFound,
    "agents that share nodes of a cell, with the number of their nodes", ANYONE, _CONDUCTOR)
EDIT_SHARING = Query("cell.sharing.{cell}", SharingEditRequested, SharingEditAnswered,
    "enable or disable an agent that shares nodes, move its nodes to other agents", ANYONE, _CONDUCTOR)
# fmt: on


def _reversed(asked: SharingEditRequested, past: Past) -> Sequence[Message]:
    if asked.edit == "rehome":
        raise NotUndoable("`berth cell agent rehome` moves the nodes back")
    return (structs.replace(asked, edit="enable" if asked.edit == "disable" else "disable"),)


PART = MessagesPart(
    acts=(
        Act(
            "share nodes",
            "operator",
            "disable or enable an agent of shared nodes, or move its nodes",
            sent(EDIT_SHARING),
            limited_by=("cells",),
        ),
    ),
    requested={
        SharingEditRequested: Requested(
            state=lambda message: (FIND_AGENTS, FindAgents(cell=message.cell)),
            real=as_named,
            undo=UndoRule(EDIT_SHARING, _reversed),
        )
    },
)

"""Who acts on which bare-metal node of a cell: what agents ask its conductor, and what operators do."""

from typing import Annotated, Literal

from msgspec import Meta

from bus.vocabulary import Cause, Compact, Count, Id, LongList, Message, Ordinal, Seconds, Text, Value, Word


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
    nodes: LongList[NodeLent] = ()  # those that changed
    more: bool = False  # ask again at once: there are more of them
    tells: bool = False  # it is the one to tell which nodes there are


class NodesTold(Message, frozen=True, kw_only=True):
    """Which nodes there are of those behind `after`, up to and with `upto`: these and no others."""

    cell: Word
    agent: Word
    pool: Word
    nodes: Annotated[tuple[Id, ...], Meta(max_length=10_000)]
    after: Text = ""
    upto: Text = ""  # empty: to the end


class NodesTaken(Message, frozen=True, kw_only=True):
    new: Count = 0
    gone: Count = 0


# What operators ask


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
    agents: LongList[AgentStands]
    nodes: Count = 0  # in all


class AgentEditRequested(Message, frozen=True, kw_only=True):
    """disable: it gets no free nodes, and those it has go to others. rehome: all it has does, or these nodes,
    with what is on them; as soon as it is certain that it acts on them no more."""

    cell: Word
    agent: Word
    edit: Literal["disable", "enable", "rehome"]
    to: Text = ""  # rehome: to this one; empty: as the ring says
    nodes: Annotated[tuple[Id, ...], Meta(max_length=10_000)] = ()  # rehome: these; none: all


class AgentEditAnswered(Message, frozen=True, kw_only=True):
    refused: Cause = ""
    moved: Count = 0  # nodes that are another's now
    waiting: Count = 0  # nodes that will be, when it has stopped or its lease is over

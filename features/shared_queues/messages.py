"""Messages between a cell's agents and the gateway through which they share queues: relayed orders, and
heartbeats that the gateway merges.
"""

from typing import Annotated, Literal

from msgspec import Meta, Raw

from bus.feature import MessagesPart
from bus.messages import HostReported
from bus.topics import Query, Topic
from bus.vocabulary import Cause, Message, Seconds, Text, Word

ANSWER_SECONDS = 5.0  # time-out of a relayed order; agents answer much sooner that the order is in progress


class OrderRelayed(Message, frozen=True, kw_only=True):
    """A query in which the gateway relays an order to an agent."""

    cell: Word
    agent: Word
    type: Text  # name of the order's message, such as BuildOrdered
    order: Raw  # the order, as it is published where agents do not share queues


class OrderAnswered(Message, frozen=True, kw_only=True):
    """The state of a relayed order. A `handled` order leaves the gateway's queue, a `refused` order becomes a
    dead letter, and any other order is relayed again (a `failed` order a few times).
    """

    # handled: all reports are published; working: ask again; later: relay again after `seconds`;
    # refused: no retry can help; failed: an unexpected exception
    state: Literal["handled", "working", "later", "refused", "failed"]
    seconds: Seconds = 0.0  # working: seconds since the order began; later: seconds until the next try
    why: Cause = ""


class HeartbeatRelayed(HostReported, frozen=True, kw_only=True):
    """A heartbeat of an agent that shares the queues of its cell; the cell's gateway merges heartbeats."""


MOST_MERGED = 250  # heartbeats in a message, which its receiver handles without a pause


class HeartbeatsMerged(Message, frozen=True, kw_only=True):
    """The heartbeats of several agents of one cell in one message, with unchanged contents."""

    cell: Word
    reports: Annotated[tuple[HostReported, ...], Meta(max_length=MOST_MERGED)]

    def __post_init__(self) -> None:
        if any(report.cell != self.cell for report in self.reports):
            raise ValueError(f"a heartbeat of another cell than {self.cell}")


# fmt: off
AGENT_BEAT = Topic("agent.beat.{cell}", HeartbeatRelayed,
    "heartbeat of an agent that shares queues, to be merged", "agents", "that cell's gateway", expected=False)
AGENT_ORDER = Query("agent.order.{cell}.{agent}", OrderRelayed, OrderAnswered,
    "carry out an order, where agents share queues", "gateway", "agent", within=True, to_agents=True)
HEARTBEATS_MERGED = Topic("host.merged.{cell}", HeartbeatsMerged,
    "heartbeats of several agents that share queues", "gateway", "every scheduler", expected=False)
# fmt: on


PART = MessagesPart(heartbeats=(HEARTBEATS_MERGED,))

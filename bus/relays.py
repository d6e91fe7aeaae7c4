"""Messages between a cell's agents and the gateway through which they share queues: relayed orders, and
heartbeats that the gateway merges.
"""

from typing import Annotated, Literal

from msgspec import Meta

from bus.guests import GuestsAsked
from bus.messages import BuildOrdered, DestroyOrdered, HostReported
from bus.moves import MoveOrdered
from bus.vocabulary import Cause, Message, Seconds, Word

ANSWER_SECONDS = 5.0  # time-out of a relayed order; agents answer much sooner that the order is in progress
Order = BuildOrdered | DestroyOrdered | MoveOrdered | GuestsAsked
MOST_MERGED = 250  # hosts or heartbeats in a message, which its receiver handles without a pause


class OrderRelayed(Message, frozen=True, kw_only=True, omit_defaults=True):
    """A query in which the gateway relays an order to an agent; exactly one field, the order, is set."""

    build: BuildOrdered | None = None
    destroy: DestroyOrdered | None = None
    move: MoveOrdered | None = None
    asked: GuestsAsked | None = None

    def __post_init__(self) -> None:
        orders = (self.build, self.destroy, self.move, self.asked)
        if sum(order is not None for order in orders) != 1:
            raise ValueError("exactly one order is relayed at a time")

    @property
    def order(self) -> Order:
        order = self.build or self.destroy or self.move or self.asked
        assert order is not None
        return order

    @property
    def cell(self) -> str:
        return self.order.cell

    @property
    def agent(self) -> str:
        return self.order.agent


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


class HeartbeatsMerged(Message, frozen=True, kw_only=True):
    """The heartbeats of several agents of one cell in one message, with unchanged contents."""

    cell: Word
    reports: Annotated[tuple[HostReported, ...], Meta(max_length=MOST_MERGED)]

    def __post_init__(self) -> None:
        if any(report.cell != self.cell for report in self.reports):
            raise ValueError(f"a heartbeat of another cell than {self.cell}")

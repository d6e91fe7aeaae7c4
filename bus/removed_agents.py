"""Messages about agents that operators remove from a cell."""

from typing import Literal

from bus.vocabulary import Count, Message, Word


class AgentEditRequested(Message, frozen=True, kw_only=True):
    """An operator's request about an agent. `remove` states that the agent will not return and that it runs
    no guests: the cell ends its orders. `restore`: the removed agent gets orders again.
    """

    cell: Word
    agent: Word
    edit: Literal["remove", "restore"]


class AgentEditAnswered(Message, frozen=True, kw_only=True):
    """The answer to the removal or restoration of an agent."""

    nodes: Count = 0  # remove: number of shared nodes that go to other agents
    assumed: Count = 0  # restore: number of the agent's guests whose destruction was only assumed

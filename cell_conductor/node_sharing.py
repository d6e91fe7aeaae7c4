"""The agent that gets the orders for a node: for a root provider on which several agents may act."""

from collections.abc import Collection, Sequence

from bus.messages import AgentReported
from bus.vocabulary import Message
from bus.worker import WorkerRows


class NodeSharing:
    """Decides which agent may act on a shared node; the node's epoch changes with its agent. Here one agent
    acts on each node.
    """

    async def addressed(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages, with each order about a shared node addressed to the node's present agent,
        and with the node's epoch.
        """
        return messages

    async def outdated(self, reports: Sequence[AgentReported]) -> Collection[int]:
        """Return the positions of the reports of agents that may no longer act on the reported node."""
        return ()

    async def shared(self, roots: Collection[str]) -> Collection[str]:
        """Return which root providers are shared nodes."""
        return ()

    async def removed(self, agent: str) -> int:
        """Give the nodes of an agent that an operator removed to other agents; return how many."""
        return 0

    async def restored(self, agent: str) -> None:
        """Permit that an agent gets nodes again, because an operator restored it."""

    def rows(self) -> WorkerRows:
        """Return the rows that it adds to the conductor's worker."""
        return WorkerRows()

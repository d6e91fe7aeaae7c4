"""The right of an agent to act on the Ironic nodes of its pool."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

from bus.worker import WorkerRows

# ours: the agent may act. not yet: the owner is unknown so far. over: another agent owns the node, or the
# order's epoch has passed.
Standing = Literal["ours", "not yet", "over"]


class NodeRight:
    """The right to act on nodes, which an agent may get and lose at any time. Here it is the right of the
    only agent of a pool, which has all of its nodes.
    """

    def good(self) -> bool:
        """Return whether the agent may act on nodes at present."""
        return True

    def standing(self, root: str, epoch: int, since: float) -> Standing:
        """Return whether the agent may execute an order that has this epoch and arrived at the monotonic time
        `since`.
        """
        return "ours"

    @asynccontextmanager
    async def writing(self, root: str, epoch: int) -> AsyncIterator[None]:
        """Run a block that changes a node in Ironic for an order with this epoch; raise Unavailable if the
        agent may not act on the node, or loses the right during the block.
        """
        yield

    def rows(self, changed: Callable[[], None]) -> WorkerRows:
        """Return the rows that it adds to the agent's worker; they call `changed` when the agent has got or
        lost nodes.
        """
        return WorkerRows()

"""The nodes that an agent may act on by its lease: under which epochs, and until when."""

from collections.abc import Collection
from typing import Literal

from bus.leases import LeaseAnswered

NEVER = float("-inf")

# ours: the agent may act. not yet: the owner is unknown so far. over: another agent owns the node, or the
# order's epoch has passed.
Standing = Literal["ours", "not yet", "over"]


class LeasedNodes:
    """The leased nodes; empty before the first answer. All times are monotonic."""

    def __init__(self) -> None:
        self.epoch = 0
        self.version = 0  # of the known assignment
        self.until = NEVER
        self.tells = False
        self._nodes: dict[str, int] = {}  # node → epoch
        self._known_at = NEVER  # when the question was asked that completed this assignment

    def __len__(self) -> int:
        return len(self._nodes)

    def answered(self, asked_at: float, answer: LeaseAnswered) -> Collection[str]:
        """Apply an answer, and return the nodes that were lost or leased under a new epoch."""
        if answer.refused or answer.epoch < self.epoch:
            return ()
        lost: set[str] = set()
        if answer.epoch != self.epoch:
            lost = set(self._nodes)
            self._nodes = {}
        self.epoch, self.version, self.tells = answer.epoch, answer.version, answer.tells
        for lent in answer.nodes:
            if self._nodes.get(lent.root, 0) != lent.epoch:
                lost.add(lent.root)
            if lent.epoch:
                self._nodes[lent.root] = lent.epoch
            else:
                self._nodes.pop(lent.root, None)
        self.until = asked_at + answer.seconds
        if not answer.more:
            self._known_at = asked_at
        return lost

    def good(self, now: float) -> bool:
        """Return whether the lease is valid."""
        return now < self.until

    def standing(self, root: str, epoch: int, since: float, now: float) -> Standing:
        """Return whether an order that arrived at `since` may be executed. Epoch 0: its sender knew of no
        lease.

        An order is sent after its node was leased: an answer to a question asked after the order arrived is
        never older.
        """
        if not self.good(now):
            return "not yet"
        ours = self._nodes.get(root, 0)
        if ours and (epoch == 0 or ours == epoch):
            return "ours"
        if ours > epoch:
            return "over"
        return "over" if self._known_at > since else "not yet"

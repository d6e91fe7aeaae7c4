"""What an agent may do by its lease: on which nodes it may act, under which epochs, until when."""

from collections.abc import Collection
from typing import Literal

from bus.leases import LeaseAnswered

NEVER = float("-inf")

# ours: act. not yet: nobody knows, or the word of it is on its way. over: it is another's, or was told under
# an epoch that has passed.
Standing = Literal["ours", "not yet", "over"]


class LentNodes:
    """Nothing before the first answer. All times are of a clock that never goes back."""

    def __init__(self) -> None:
        self.epoch = 0
        self.version = 0  # of what is known
        self.until = NEVER
        self.tells = False
        self._nodes: dict[str, int] = {}  # ours, and their epochs
        self._known_at = NEVER  # when the question was asked whose answer made all of this known

    def __len__(self) -> int:
        return len(self._nodes)

    def answered(self, asked_at: float, answer: LeaseAnswered) -> Collection[str]:
        """Take it in; gives the nodes that are ours no more, or were lent to us anew."""
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
        """Is there a lease?"""
        return now < self.until

    def standing(self, root: str, epoch: int, since: float, now: float) -> Standing:
        """Of an order under this epoch, which came then; epoch 0: made by who knew of none.

        It was made after its node was lent: an answer to what was asked after it came is never older.
        """
        if not self.good(now):
            return "not yet"
        ours = self._nodes.get(root, 0)
        if ours and (epoch == 0 or ours == epoch):
            return "ours"
        if ours > epoch:
            return "over"
        return "over" if self._known_at > since else "not yet"

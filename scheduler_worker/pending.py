"""What this process has chosen and not yet seen in placement: it is promised, and counts as used."""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

import msgspec

from bus.candidates import CandidateSource
from bus.vocabulary import Allocations

TIMEOUT = 15.0  # longer than a claim may take to be answered


class PendingChoice(msgspec.Struct, eq=False, gc=False):
    """One choice, from the moment it is made until placement's memory shows it."""

    allocations: Allocations
    cell: str
    root: str
    at: float  # when it was made
    until: float
    open: bool = True
    number: int | None = None  # the change that made it true; None: not known yet, nor whether there is one


class PendingChoices:
    """Promises, kept as long as they must be."""

    def __init__(self, source: CandidateSource, timeout: float = TIMEOUT) -> None:
        self.timeout = timeout
        self._source = source
        self._open: deque[PendingChoice] = deque()  # in the order in which they time out
        self._confirmed: list[tuple[int, int, PendingChoice]] = []
        self._ties = 0
        self.let_go: Callable[[str], None] = lambda root: None  # told of hosts where more may be free now

    def enter(self, allocations: Allocations, cell: str, root: str, now: float) -> PendingChoice:
        """A choice is made."""
        entry = PendingChoice(allocations, cell, root, now, now + self.timeout)
        self._source.promise(allocations)
        self._open.append(entry)
        return entry

    def confirm(self, entry: PendingChoice, number: int) -> None:
        """It was claimed, as this change of placement."""
        if number <= self._source.seen:
            self._shown(entry)
            return
        self._ties += 1
        entry.number = number
        heappush(self._confirmed, (number, self._ties, entry))

    def drop(self, entry: PendingChoice) -> None:
        """It came to nothing, or placement counts it now. Dropping twice is dropping once."""
        if entry.open:
            entry.open = False
            self._source.withdraw(entry.allocations)

    def look(self, now: float) -> None:
        """Drop what placement's memory has by now, and what timed out."""
        confirmed, seen = self._confirmed, self._source.seen
        while confirmed and confirmed[0][0] <= seen:
            self._shown(heappop(confirmed)[2])
        while self._open and (not self._open[0].open or self._open[0].until <= now):
            late = self._open.popleft()
            if late.open:
                self.drop(late)
                self.let_go(late.root)

    def _shown(self, entry: PendingChoice) -> None:
        """Placement's memory may have had it for a while: it counted twice, and who waits saw less room."""
        if entry.open:
            self.drop(entry)
            self.let_go(entry.root)

    @property
    def unsettled(self) -> list[PendingChoice]:
        """Those of which it is not known whether they come true."""
        return [entry for entry in self._open if entry.open and entry.number is None]

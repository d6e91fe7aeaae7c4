"""Choices of hosts by this process that placement's index does not show yet: their capacity is reserved and
counted as used.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

import msgspec

from bus.candidates import CandidateSource
from bus.queries import Candidate
from bus.vocabulary import Allocations
from scheduler_worker.hosts import HostBook

TIMEOUT = 15.0  # longer than a claim may take to be answered


class PendingChoice(msgspec.Struct, eq=False, gc=False):
    """One choice of a host, from the moment it is made until placement's index shows the claim."""

    allocations: Allocations
    cell: str
    root: str
    at: float  # when it was made
    until: float
    open: bool = True
    number: int | None = None  # change number of its claim; None: no result yet


class PendingChoices:
    """The reservations of chosen hosts, kept until placement's index shows their claims or the claims
    fail.
    """

    def __init__(self, source: CandidateSource, timeout: float = TIMEOUT) -> None:
        self.timeout = timeout
        self._source = source
        self._open: deque[PendingChoice] = deque()  # in the order in which they time out
        self._confirmed: list[tuple[int, int, PendingChoice]] = []
        self._ties = 0
        # called with hosts on which capacity was released
        self.let_go: Callable[[str], None] = lambda root: None

    def enter(self, allocations: Allocations, cell: str, root: str, now: float) -> PendingChoice:
        entry = PendingChoice(allocations, cell, root, now, now + self.timeout)
        self._source.reserve(allocations)
        self._open.append(entry)
        return entry

    def confirm(self, entry: PendingChoice, number: int) -> None:
        if number <= self._source.seen:
            self._shown(entry)
            return
        self._ties += 1
        entry.number = number
        heappush(self._confirmed, (number, self._ties, entry))

    def drop(self, entry: PendingChoice) -> None:
        """Release the reservation of a choice: its claim failed, or the index shows it. Repeating this has no
        effect.
        """
        if entry.open:
            entry.open = False
            self._source.withdraw(entry.allocations)

    def look(self, now: float) -> None:
        """Release the reservations of choices that the index shows by now, and of choices that timed out."""
        confirmed, seen = self._confirmed, self._source.seen
        while confirmed and confirmed[0][0] <= seen:
            self._shown(heappop(confirmed)[2])
        while self._open and (not self._open[0].open or self._open[0].until <= now):
            late = self._open.popleft()
            if late.open:
                self.drop(late)
                self.let_go(late.root)

    def _shown(self, entry: PendingChoice) -> None:
        """Release a reservation because the index shows its claim, so that resources do not count twice."""
        if entry.open:
            self.drop(entry)
            self.let_go(entry.root)

    @property
    def unsettled(self) -> list[PendingChoice]:
        """Return the choices whose claims have no result yet."""
        return [entry for entry in self._open if entry.open and entry.number is None]


@dataclass(frozen=True, slots=True)
class Promising:
    """The reservation of chosen hosts: subtracts them from the index's free amounts, and counts them as
    builds on their hosts.
    """

    pending: PendingChoices
    book: HostBook
    now: float

    @property
    def unsettled(self) -> list[PendingChoice]:
        return self.pending.unsettled

    def enter(self, way: Candidate) -> PendingChoice:
        self.book.chose(way.cell, way.root, self.now)
        return self.pending.enter(way.allocations, way.cell, way.root, self.now)

    def drop(self, promise: object) -> None:
        if isinstance(promise, PendingChoice) and promise.open:
            self.book.unchose(promise.cell, promise.root, promise.at)
            self.pending.drop(promise)

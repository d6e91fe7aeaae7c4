"""Chosen hosts that placement's index does not show yet: their capacity is reserved and counted as used."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice

import msgspec

from bus.candidates import CandidateSource
from bus.queries import Candidate
from bus.vocabulary import Allocations
from scheduler_worker.core.scale import CapacityReservation
from scheduler_worker.hosts import HostBook

TIMEOUT = 15.0  # longer than a claim may take to be answered


class PendingChoice(msgspec.Struct, eq=False, gc=False):
    """One choice of a host, from the choice until placement's index shows the claim."""

    allocations: Allocations
    cell: str
    root: str
    at: float  # when it was made
    until: float
    open: bool = True
    number: int | None = None  # change number of its claim; None: no result yet


class PendingChoices:
    """Reservations of chosen hosts, kept until placement's index shows their claims or the claims fail."""

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
        """Release the reserved capacity of a choice: its claim failed, or the index shows it."""
        if entry.open:
            entry.open = False
            self._source.withdraw(entry.allocations)

    def look(self, now: float) -> None:
        """Release reserved capacity for choices that the index shows by now, and for expired choices."""
        confirmed, seen = self._confirmed, self._source.seen
        while confirmed and confirmed[0][0] <= seen:
            self._shown(heappop(confirmed)[2])
        while self._open and (not self._open[0].open or self._open[0].until <= now):
            late = self._open.popleft()
            if late.open:
                self.drop(late)
                self.let_go(late.root)

    def _shown(self, entry: PendingChoice) -> None:
        """Release reserved capacity because the index shows the claim: otherwise it would count twice."""
        if entry.open:
            self.drop(entry)
            self.let_go(entry.root)

    @property
    def unsettled(self) -> list[PendingChoice]:
        """Return the choices whose claims have no result yet."""
        return [entry for entry in self._open if entry.open and entry.number is None]


@dataclass(frozen=True, slots=True)
class Promising:
    """Reserves capacity for chosen hosts in the index's free amounts, and counts the builds sent to them."""

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


class Supposing:
    """Reserves capacity for hypothetical choices; the reservations are suspended during every await."""

    def __init__(self, source: CandidateSource, book: HostBook, now: float) -> None:
        self._source = source
        self._book = book
        self._now = now
        # by id(), in order: the candidate, and whether filters count it as a build
        self._kept: dict[int, tuple[Candidate, bool]] = {}

    @property
    def unsettled(self) -> Sequence[CapacityReservation]:
        return ()

    def enter(self, way: Candidate, *, builds: bool = True) -> CapacityReservation:
        self._kept[id(way)] = way, builds
        self._reserve(way, builds)
        return way

    def drop(self, promise: CapacityReservation) -> None:
        kept = self._kept.pop(id(promise), None)
        if kept is not None:
            self._withdraw(*kept)

    def on(self, root: str) -> int:
        return sum(way.root == root for way, _ in self._kept.values())

    def suspend(self) -> None:
        for way, builds in self._kept.values():
            self._withdraw(way, builds)

    def resume(self) -> None:
        for way, builds in self._kept.values():
            self._reserve(way, builds)

    @property
    def several(self) -> int:
        return len(self._kept)

    def forget(self, after: int = 0) -> None:
        """Drop the hypothetical choices except the first `after`, and restore suspended reservations."""
        self._kept = dict(islice(self._kept.items(), after))

    def _reserve(self, way: Candidate, builds: bool) -> None:
        self._source.reserve(way.allocations)
        if builds:
            self._book.chose(way.cell, way.root, self._now)

    def _withdraw(self, way: Candidate, builds: bool) -> None:
        self._source.withdraw(way.allocations)
        if builds:
            self._book.unchose(way.cell, way.root, self._now)

"""Chosen hosts whose claims the scheduler's replica of the index does not show yet."""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

import msgspec

from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.queries import Candidate
from bus.vocabulary import Allocations, Id, without
from scheduler_worker.core.events import ReserveHost
from scheduler_worker.core.ranking import Pick
from scheduler_worker.core.rule import PLAIN, Scope
from scheduler_worker.hosts import HostBook

# Reserves the capacity of chosen hosts until their claims are visible.


CLAIM_SECONDS = 15.0  # seconds; answers to claims arrive within this time


class PendingChoice(msgspec.Struct, eq=False, gc=False):
    """A host chosen for an instance, with a claim that placement's index does not show yet."""

    allocations: Allocations
    cell: str
    root: str
    at: float  # time of the choice
    until: float
    open: bool = True
    number: int | None = None  # change number of the claim; None: placement has not answered yet
    source: Id = ""  # the source of the capacity (`Scope.source`)


class PendingChoices:
    """Reserves capacity for chosen hosts until placement's index shows their claims or the claims fail.

    Each choice also counts as a build on its host.
    """

    def __init__(
        self, source: CandidateSource, book: HostBook, clock: Clock, timeout: float = CLAIM_SECONDS
    ) -> None:
        self.timeout = timeout
        self._source = source
        self._book = book
        self._clock = clock
        self._open: deque[PendingChoice] = deque()  # the choice with the earliest time limit is first
        self._confirmed: list[tuple[int, int, PendingChoice]] = []
        self._ties = 0
        self._watchers: list[Callable[[str], None]] = []

    def enter(self, way: Candidate, scope: Scope = PLAIN) -> PendingChoice:
        """Reserve the capacity of a chosen host, and count a build on it."""
        now = self._clock.monotonic()
        allocations = without(way.allocations, scope.held) if scope.held else way.allocations
        entry = PendingChoice(allocations, way.cell, way.root, now, now + self.timeout, source=scope.source)
        self._book.chose(way.cell, way.root, now)
        self._source.packing.claim(allocations)
        self._open.append(entry)
        return entry

    def confirm(self, entry: PendingChoice, number: int) -> None:
        """Keep a reservation until the index shows the change with this number; release it if the index does
        so already.
        """
        if number <= self._source.seen:
            self._end(entry)
            return
        self._ties += 1
        entry.number = number
        heappush(self._confirmed, (number, self._ties, entry))

    def confirm_claimed(self, choice: ReserveHost) -> None:
        """Reserve a claimed host, which may be another than the first choice, until its claim is visible."""
        reservation = choice.pick.reservation
        if choice.way is not choice.pick.choices[0]:
            self.release(choice.pick)
            reservation = self.enter(choice.way, choice.pick.scope)
        if isinstance(reservation, PendingChoice):
            self.confirm(reservation, choice.number)

    def watch(self, on_released: Callable[[str], None]) -> None:
        """Register a callback for capacity that was released and that no claim uses; its argument is the root
        of the host.
        """
        self._watchers.append(on_released)

    def release(self, pick: Pick) -> None:
        """Release the reservation of a chosen host permanently: other requests may use its capacity."""
        self.drop(pick.reservation)
        self._report(pick.root)

    def _report(self, root: str) -> None:
        for on_released in self._watchers:
            on_released(root)

    def drop(self, reservation: object) -> None:
        """Release the reservation of a choice after its claim failed or was not sent."""
        if isinstance(reservation, PendingChoice) and reservation.open:
            self._book.unchose(reservation.cell, reservation.root, reservation.at)
            self._withdraw(reservation)

    def expire(self) -> None:
        """Release reservations if the index shows their claims, or if their time limit has passed."""
        now, confirmed, seen = self._clock.monotonic(), self._confirmed, self._source.seen
        while confirmed and confirmed[0][0] <= seen:
            self._end(heappop(confirmed)[2])
        while self._open and (not self._open[0].open or self._open[0].until <= now):
            self._end(self._open.popleft())

    def _end(self, entry: PendingChoice) -> None:
        """Release the capacity reserved for a choice, which may wake requests that wait for this host."""
        if entry.open:
            self._withdraw(entry)
            self._report(entry.root)

    def _withdraw(self, entry: PendingChoice) -> None:
        entry.open = False
        self._source.packing.release(entry.allocations)

    @property
    def unsettled(self) -> list[PendingChoice]:
        """Return the reservations whose claims placement has not answered yet."""
        return [entry for entry in self._open if entry.open and entry.number is None]

    def drawn_from(self, source: Id) -> list[PendingChoice]:
        """Return the unsettled reservations that use this source of capacity."""
        return [entry for entry in self.unsettled if entry.source == source]

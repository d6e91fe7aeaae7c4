"""Chooses hosts on trial: the capacity of hypothetical choices counts as used while they are active."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from bus.candidates import CandidateSource
from bus.queries import Candidate
from bus.vocabulary import Allocations, Id, without
from scheduler_worker.extension import PLAIN, CapacityReservation, HostBook, Scope


class Supposing:
    """Remembers hypothetical choices. They count in searches inside `with supposing.active()`."""

    def __init__(
        self, source: CandidateSource, book: HostBook, now: float, free: Sequence[Allocations] = ()
    ) -> None:
        self._source = source
        self._book = book
        self._now = now
        self._free = free  # counts as free while the choices are active
        # id() of a candidate → the candidate, what it takes, and whether it counts as a build on its host; in
        # order of choice
        self._kept: dict[int, tuple[Candidate, Allocations, bool]] = {}
        self._sources: dict[int, Id] = {}  # id() of a candidate → the source of its capacity, if it has one

    @property
    def unsettled(self) -> Sequence[CapacityReservation]:
        return ()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Count the choices made so far, and those of the `with` block, until its end. The block must not
        await, because other tasks would then count them too.
        """
        with self._source.packing.releasing(*self._free):
            for kept in self._kept.values():
                self._count(*kept)
            try:
                yield
            finally:
                for kept in self._kept.values():
                    self._uncount(*kept)

    def drawn_from(self, source: Id) -> Sequence[CapacityReservation]:
        return [way for way, *_ in self._kept.values() if self._sources.get(id(way)) == source]

    def enter(self, way: Candidate, scope: Scope = PLAIN, *, builds: bool = True) -> CapacityReservation:
        """Count the capacity of a supposed choice as used until the end of the question."""
        allocations = without(way.allocations, scope.held) if scope.held else way.allocations
        self._kept[id(way)] = way, allocations, builds
        if scope.source:
            self._sources[id(way)] = scope.source
        self._count(way, allocations, builds)
        return way

    def drop(self, reservation: CapacityReservation) -> None:
        kept = self._kept.pop(id(reservation), None)
        if kept is not None:
            self._uncount(*kept)

    def on(self, root: str) -> int:
        """Return the number of supposed choices on a host."""
        return sum(way.root == root for way, *_ in self._kept.values())

    @property
    def several(self) -> int:
        return len(self._kept)

    def forget(self, after: int = 0) -> None:
        """Drop all hypothetical choices made after the first `after` choices."""
        self._kept = dict(islice(self._kept.items(), after))

    def _count(self, way: Candidate, allocations: Allocations, builds: bool) -> None:
        self._source.packing.claim(allocations)
        if builds:
            self._book.chose(way.cell, way.root, self._now)

    def _uncount(self, way: Candidate, allocations: Allocations, builds: bool) -> None:
        self._source.packing.release(allocations)
        if builds:
            self._book.unchose(way.cell, way.root, self._now)

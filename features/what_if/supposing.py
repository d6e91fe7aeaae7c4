"""Reserves the capacity of hypothetical choices."""

from collections.abc import Sequence
from itertools import islice

from bus.candidates import CandidateSource
from bus.queries import Candidate
from bus.vocabulary import Allocations, without
from scheduler_worker.extension import NOTHING_HELD, CapacityReservation, HostBook


class Supposing:
    """Reserves capacity for hypothetical choices; the reservations are suspended during every await."""

    def __init__(self, source: CandidateSource, book: HostBook, now: float) -> None:
        self._source = source
        self._book = book
        self._now = now
        # id() of a candidate → the candidate, what is reserved, and whether it counts as a build on its
        # host; in order of choice
        self._kept: dict[int, tuple[Candidate, Allocations, bool]] = {}

    @property
    def unsettled(self) -> Sequence[CapacityReservation]:
        return ()

    def enter(
        self, way: Candidate, held: Allocations = NOTHING_HELD, *, builds: bool = True
    ) -> CapacityReservation:
        allocations = without(way.allocations, held) if held else way.allocations
        self._kept[id(way)] = way, allocations, builds
        self._reserve(way, allocations, builds)
        return way

    def drop(self, reservation: CapacityReservation) -> None:
        reserved = self._kept.pop(id(reservation), None)
        if reserved is not None:
            self._withdraw(*reserved)

    def on(self, root: str) -> int:
        return sum(way.root == root for way, *_ in self._kept.values())

    def suspend(self) -> None:
        for reserved in self._kept.values():
            self._withdraw(*reserved)

    def resume(self) -> None:
        for reserved in self._kept.values():
            self._reserve(*reserved)

    @property
    def several(self) -> int:
        return len(self._kept)

    def forget(self, after: int = 0) -> None:
        """Drop all hypothetical choices made after the first `after` choices."""
        self._kept = dict(islice(self._kept.items(), after))

    def _reserve(self, way: Candidate, allocations: Allocations, builds: bool) -> None:
        self._source.reserve(allocations)
        if builds:
            self._book.chose(way.cell, way.root, self._now)

    def _withdraw(self, way: Candidate, allocations: Allocations, builds: bool) -> None:
        self._source.withdraw(allocations)
        if builds:
            self._book.unchose(way.cell, way.root, self._now)

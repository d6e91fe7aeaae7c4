"""Hypothetical choices: their reservations are released before any other choice."""

from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from bus.candidates import CandidateSource
from bus.queries import Candidate
from bus.vocabulary import Allocations
from scheduler_worker.core.choice import CapacityReservation


class CountsBuilds(Protocol):
    """Knows how many builds were recently sent to each host."""

    def chose(self, cell: str, root: str, now: float) -> None: ...

    def unchose(self, cell: str, root: str, at: float) -> None: ...


class Supposed:
    """A reservation that is never claimed; `builds` is false if rules are not to count it as a build."""

    __slots__ = ("allocations", "builds", "cell", "root")

    def __init__(self, way: Candidate, builds: bool) -> None:
        self.allocations: Allocations = way.allocations
        self.cell, self.root, self.builds = way.cell, way.root, builds


class Supposing:
    """Keeps promises while a stretch without an await lasts; `suspend` before one, `resume` after it."""

    def __init__(self, source: CandidateSource, builds: CountsBuilds, now: float) -> None:
        self._source = source
        self._builds = builds
        self._now = now
        self._kept: dict[Supposed, None] = {}  # in order

    @property
    def unsettled(self) -> Sequence[CapacityReservation]:
        return ()

    def enter(self, way: Candidate, *, builds: bool = True) -> CapacityReservation:
        supposed = Supposed(way, builds)
        self._kept[supposed] = None
        self._reserve(supposed)
        return supposed

    def drop(self, promise: CapacityReservation) -> None:
        if isinstance(promise, Supposed) and promise in self._kept:
            del self._kept[promise]
            self._withdraw(promise)

    def on(self, root: str) -> int:
        """Return the number of hypothetical builds on this host."""
        return sum(supposed.root == root for supposed in self._kept)

    def suspend(self) -> None:
        for supposed in self._kept:
            self._withdraw(supposed)

    def resume(self) -> None:
        for supposed in self._kept:
            self._reserve(supposed)

    @property
    def several(self) -> int:
        return len(self._kept)

    def forget(self, after: int = 0) -> None:
        """Drop the hypothetical choices after the first `after` ones, and restore suspended reservations."""
        self._kept = dict.fromkeys(islice(self._kept, after))

    def _reserve(self, supposed: Supposed) -> None:
        self._source.reserve(supposed.allocations)
        if supposed.builds:
            self._builds.chose(supposed.cell, supposed.root, self._now)

    def _withdraw(self, supposed: Supposed) -> None:
        self._source.withdraw(supposed.allocations)
        if supposed.builds:
            self._builds.unchose(supposed.cell, supposed.root, self._now)

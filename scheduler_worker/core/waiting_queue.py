"""Queues waiting requests by equivalence class, and reserves hosts for the first request of each queue.

The first request reserves, of the hosts that it could ever use, the host that is nearest to fitting. Later
requests may use every other host, so they cannot delay the first request.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

import numpy as np

from bus.candidates import Bools, Floats, Ints
from bus.vocabulary import Id

Root = str
Roots = Collection[Root]
QueueKey = tuple[int, float, Id]  # negative priority, arrival, id: the lowest key is first in the queue

REMEMBERED = 20_000  # changes of hosts that are remembered for evaluations in progress
MOST_QUEUES = 64  # equivalence classes whose first request may reserve hosts
MOST_ASKED = 64  # hosts on which filters are evaluated to find one to reserve


@dataclass(frozen=True, slots=True, eq=False)
class Prospect:
    """The hosts that would fit a request of an equivalence class if empty, and what they lack now."""

    size: int  # number of positions in placement's index
    positions: Ints
    lacks: Floats  # by host: what it lacks now, as a sum of fractions; 0: it fits
    capacities: Floats  # by host: most instances that fit if it is empty
    root: Callable[[int], Root]  # returns the root of the host at a position
    admits: Callable[[int], bool]  # returns whether no filter permanently rejects the host at a position


@dataclass(frozen=True, slots=True)
class HostReservation:
    """A host reserved for the first waiting request of an equivalence class."""

    key: QueueKey
    kind: str


@dataclass(frozen=True, slots=True)
class CapacityNeeded:
    """The amount of a resource class that a host must have free to fit one flavor of a request. If
    `resource_class` is empty, no amount is required, and any host may fit.
    """

    resource_class: str = ""
    amount: int = 0


@dataclass(frozen=True, slots=True)
class HostsFound:
    """The hosts that fit requests of one equivalence class, and the hosts that only filters reject."""

    fits: Mapping[Root, int]  # root of a host → most instances that fit
    refused: Roots = ()  # hosts that fit, but that a filter rejects
    passing: bool = False  # whether a host is rejected for a temporary reason only
    more: bool = False  # the search stopped before all hosts were evaluated


@dataclass(slots=True, eq=False)
class ClassQueue:
    """The queue of one equivalence class: its waiting requests, and the hosts that may fit them."""

    kind: str
    watches: Sequence[CapacityNeeded]
    needs: int  # number of instances of a request that must be placed together
    waiting: list[QueueKey] = field(default_factory=list)  # sorted; without requests being placed now
    trying: set[QueueKey] = field(default_factory=set)
    open: dict[Root, int] = field(default_factory=dict)  # fitting host → most instances that fit
    untested: dict[Root, None] = field(default_factory=dict)  # hosts to evaluate, because they changed
    refused: set[Root] = field(default_factory=set)  # hosts that fit, but that a filter rejects
    failed_roots: set[Root] = field(default_factory=set)  # unchanged hosts on which placing has failed
    swept: bool = False  # True if no change but only the periodic search of all hosts found the fitting hosts
    more: bool = False  # True if more hosts may fit: the search stopped when all waiting requests had one
    all_hosts: bool = False  # True if all hosts must be evaluated
    retry_at: float | None = None  # when all hosts are evaluated again even without a change

    @property
    def first(self) -> QueueKey:
        """Return the first waiting request of the equivalence class, even if it is being placed now."""
        return min([*self.trying, *self.waiting[:1]])

    def position(self, key: QueueKey) -> int:
        """Return how many requests of the class precede `key`, plus 1."""
        return bisect_left(self.waiting, key) + sum(tried < key for tried in self.trying) + 1

    @property
    def further(self) -> bool:
        """Return True if a new search is due: the last search stopped before all hosts were evaluated, and
        all hosts that it found were tried."""
        return self.more and not self.open and not self.trying

    def enough(self, roots: Roots, requests: int) -> list[Root]:
        """Return the first of the fitting hosts `roots`: as many as fit the given number of waiting
        `requests`.
        """
        capacity, found = 0, list[Root]()
        for root in roots:
            if capacity >= requests * self.needs:
                break
            capacity += self.open[root]
            found.append(root)
        return found

    @property
    def ready(self) -> bool:
        return bool(self.waiting) and bool(self.all_hosts or self.further or self.untested or self.open)


@dataclass(slots=True, eq=False)
class Trial:
    """The waiting requests of one equivalence class that are being placed now, on hosts found for them."""

    queue: ClassQueue
    roots: tuple[Root, ...]
    kept: tuple[Root, ...]  # hosts in `roots` closed to requests of other classes until the trial ends
    open: set[Id]
    placed: bool = False
    scheduled: bool = False  # whether a time for the next attempt is set


@dataclass(frozen=True, slots=True)
class NextRequest:
    """A waiting request to place now, because a host may fit it; and hosts that this request may not use."""

    request: Id
    excluded: frozenset[Root]
    forgotten: bool = False  # True if only the periodic search of all hosts found a host for the request


class HostData(Protocol):
    """The interface by which the waiting queues ask for hosts' free amounts and for the hosts that fit."""

    def free(self, root: Root) -> Mapping[str, int]:
        """Return a host's free amounts by resource class, or an empty mapping if no such host exists."""

    def watches(self, kind: str) -> Sequence[CapacityNeeded]:
        """Return, for each flavor of the equivalence class, an amount of one resource class that a host must
        have free to fit any request of the class.
        """

    def search(self, kind: str, among: Roots | None, excluding: Roots, enough: int) -> HostsFound:
        """Return which hosts in `among` (None: all) fit the equivalence class; stop at `enough` instances."""

    def prospect(self, kind: str) -> Prospect:
        """Return the hosts that would fit the equivalence class if empty, and the capacity each lacks now."""


class ChangeHistory:
    """The history of recent changes of hosts, for requests whose search began before the last changes."""

    def __init__(self) -> None:
        self.mark = 0  # number of changes of hosts so far
        self._recent: deque[tuple[int, Root]] = deque()
        self._forgotten = 0  # the number of the last change that is no longer remembered

    def remember(self, roots: Roots) -> None:
        for root in roots:
            self.mark += 1
            self._recent.append((self.mark, root))
        while len(self._recent) > REMEMBERED:
            self._forgotten, _ = self._recent.popleft()

    def since(self, mark: int) -> list[Root] | None:
        """Return the hosts changed since the change counter was `mark`; None if older changes are lost."""
        if mark < self._forgotten:
            return None
        return [root for _, root in takewhile(lambda change: change[0] > mark, reversed(self._recent))]

    def forget_all(self) -> None:
        """Record that all hosts may have changed, and delete the list of single changed hosts."""
        self.mark += 1
        self._recent.clear()
        self._forgotten = self.mark


def reservations(
    queues: Sequence[ClassQueue], prospect: Callable[[str], Prospect], before: Roots
) -> dict[Root, HostReservation]:
    """Return, by root, the hosts to reserve for the first waiting request of each equivalence class,
    preferably hosts that were reserved before.
    """
    reserved: dict[Root, HostReservation] = {}
    covered: Bools = np.zeros(0, np.bool_)
    for queue in queues[:MOST_QUEUES]:
        seen = prospect(queue.kind)
        if len(covered) < seen.size:
            covered = np.concatenate([covered, np.zeros(seen.size - len(covered), np.bool_)])
        left = np.flatnonzero(~covered[seen.positions])
        covered[seen.positions] = True
        for root in _nearest(seen, left, queue.needs, before):
            reserved[root] = HostReservation(queue.first, queue.kind)
    return reserved


def _nearest(seen: Prospect, left: Ints, needs: int, before: Roots) -> list[Root]:
    """Return, of the hosts at the indices `left`, the hosts that lack the least capacity: as many as would
    take `needs` instances. Hosts in `before` come first.
    """
    if not len(left):
        return []
    far = seen.lacks[left]
    if before:
        stays = [seen.root(int(position)) in before for position in seen.positions[left]]
        far = np.where(stays, -1.0, far)
    found: list[Root] = []
    capacity = 0.0
    for at in left[np.argsort(far, kind="stable")[: MOST_ASKED + needs]]:
        if capacity >= needs:
            break
        position = int(seen.positions[at])
        if seen.admits(position):
            found.append(seen.root(position))
            capacity += max(float(seen.capacities[at]), 1.0)
    return found

"""The queue of one class of waiting requests, and the hosts that first requests reserve.

The first waiting request of each class reserves the nearest host that it could ever use. Later requests may
use every other host, so they cannot delay the first request.
"""

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
QueueKey = tuple[int, float, Id]  # −priority, arrival and id of a waiting request: the lowest is first

REMEMBERED = 20_000  # recent changes of hosts, for evaluations in progress
MOST_QUEUES = 64  # classes whose first requests may reserve hosts
MOST_ASKED = 64  # hosts a rule is asked about before one is kept without


@dataclass(frozen=True, slots=True, eq=False)
class Prospect:
    """The hosts that could ever take a request of one equivalence class, if they were empty."""

    size: int  # positions are below this
    positions: Ints
    lacks: Floats  # how far each is from having room now; 0: it has
    capacities: Floats  # how many could be there at most
    root: Callable[[int], Root]  # of a position
    admits: Callable[[int], bool]  # whether no filter rejects the host permanently


@dataclass(frozen=True, slots=True)
class HostReservation:
    """The reservation of a host for a waiting request."""

    key: QueueKey
    kind: str


@dataclass(frozen=True, slots=True)
class CapacityNeeded:
    """The free capacity that a host must have before a request of the class may fit; empty: unknown."""

    resource_class: str = ""
    amount: int = 0


@dataclass(frozen=True, slots=True)
class HostsFound:
    """The result of a search of hosts for one equivalence class of waiting requests."""

    fits: Mapping[Root, int]  # and for how many of the kind there is room, at most
    refused: Roots = ()  # there is room, and a rule refuses them
    passing: bool = False  # does something that passes by itself stand in the way?
    more: bool = False  # it has stopped early


@dataclass(slots=True, eq=False)
class ClassQueue:
    """The queue of one equivalence class: its waiting requests, and the known hosts for them."""

    kind: str
    watches: Sequence[CapacityNeeded]
    needs: int  # instances of each request that are placed together or not at all
    waiting: list[QueueKey] = field(default_factory=list)  # in order, without requests on trial
    trying: set[QueueKey] = field(default_factory=set)
    open: dict[Root, int] = field(default_factory=dict)  # would do, and for how many
    untested: dict[Root, None] = field(default_factory=dict)  # something changed there
    refused: set[Root] = field(default_factory=set)  # only rules stand in the way
    failed_roots: set[Root] = field(default_factory=set)  # seemed to suit, and did not; unchanged since
    swept: bool = False  # nothing but the sweep has found what is open
    more: bool = False  # more hosts would fit: the search stopped at the number of waiting requests
    all_hosts: bool = False  # all hosts are to be evaluated
    retry_at: float | None = None  # when to do so again by itself

    @property
    def first(self) -> QueueKey:
        """Return the first request of the queue, also if it is being placed now."""
        return min([*self.trying, *self.waiting[:1]])

    @property
    def further(self) -> bool:
        """Return whether unknown hosts should be examined for the requests behind the first one, too."""
        return self.more and not self.open and not self.trying

    @property
    def ready(self) -> bool:
        return bool(self.waiting) and bool(self.all_hosts or self.further or self.untested or self.open)


@dataclass(slots=True, eq=False)
class Trial:
    """Requests of a queue that are being placed now, because a host would fit."""

    queue: ClassQueue
    roots: tuple[Root, ...]
    open: set[Id]
    placed: bool = False


@dataclass(frozen=True, slots=True)
class NextRequest:
    """The next waiting request to place, on any host except the excluded ones."""

    request: Id
    excluded: frozenset[Root]
    forgotten: bool = False  # nothing but the sweep has found a host for it


class HostData(Protocol):
    """The interface of the host data that the waiting queues need."""

    def free(self, root: Root) -> Mapping[str, int]:
        """Return the free amounts in the provider tree of a host; empty if there is no such host."""

    def watches(self, kind: str) -> Sequence[CapacityNeeded]:
        """Return amounts of resource classes such that every host that fits has at least one of them free."""

    def search(self, kind: str, among: Roots | None, excluding: Roots, enough: int) -> HostsFound:
        """Return which of the hosts `among` fit, or `enough` of all fitting hosts if `among` is None."""

    def prospect(self, kind: str) -> Prospect:
        """Return the hosts that could ever fit an equivalence class, and how much each lacks now."""


class ChangedHosts:
    """Hosts that changed since the queues were evaluated last, and recently for evaluations in progress."""

    def __init__(self) -> None:
        self.mark = 0  # number of changes
        self.capacity: dict[Root, None] = {}  # with possibly more free capacity
        self.reports: dict[Root, None] = {}  # with changed reports
        self.released: dict[Root, None] = {}  # unchanged, but no longer excluded
        self._recent: deque[tuple[int, Root]] = deque()
        self._forgotten = 0  # changes up to this mark are not known any more

    def remember(self, roots: Roots) -> None:
        for root in roots:
            self.mark += 1
            self._recent.append((self.mark, root))
        while len(self._recent) > REMEMBERED:
            self._forgotten, _ = self._recent.popleft()

    def since(self, mark: int) -> list[Root] | None:
        """Return the hosts that changed after this mark, or None if that is not known any more."""
        if mark < self._forgotten:
            return None
        return [root for _, root in takewhile(lambda change: change[0] > mark, reversed(self._recent))]

    def forget_all(self) -> None:
        """Record that any host may have changed."""
        self.mark += 1
        self._recent.clear()
        self._forgotten = self.mark

    @property
    def any(self) -> bool:
        return bool(self.capacity or self.reports or self.released)

    def take(self) -> tuple[dict[Root, None], dict[Root, None], dict[Root, None]]:
        """Return and forget the hosts changed by capacity, by reports and by released reservations."""
        changed = self.capacity, self.reports, self.released
        self.capacity, self.reports, self.released = {}, {}, {}
        return changed


def reservations(
    queues: Sequence[ClassQueue], prospect: Callable[[str], Prospect], before: Roots
) -> dict[Root, HostReservation]:
    """Return the host that the first request of each queue reserves, if possible the same as before."""
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
    """Return the hosts closest to fitting, as many as all instances of the request need."""
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

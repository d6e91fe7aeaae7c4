"""The queue of one equivalence class of waiting requests, and the data of hosts that the queues use."""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import takewhile
from typing import Protocol

from bus.vocabulary import Id
from features.waiting.core.fitting import HostsFound
from features.waiting.core.reserved_hosts import ReservingCloud, Root, Roots
from features.waiting.core.shares import QueueKey, Rank, Shares, Size

REMEMBERED = 20_000  # changes of hosts that are remembered for evaluations in progress


@dataclass(frozen=True, slots=True)
class CapacityNeeded:
    """The amount of a resource class that a host must have free to fit one flavor of a request. If
    `resource_class` is empty, no amount is required, and any host may fit.
    """

    resource_class: str = ""
    amount: int = 0


@dataclass(slots=True, eq=False)
class ClassQueue:
    """The queue of one equivalence class: its waiting requests, and the hosts that may fit them."""

    kind: str
    base: str  # equivalence class of equal requests of any project
    project: str
    watches: Sequence[CapacityNeeded]
    needs: int  # number of instances of a request that must be placed together
    zone: str  # the zone that the requests name; "": any
    size: Size  # of each request, when requests of the class were last tried
    waiting: list[QueueKey] = field(default_factory=list)  # sorted; without requests being placed now
    trying: set[QueueKey] = field(default_factory=set)
    open: dict[Root, int] = field(default_factory=dict)  # fitting host → most instances that fit
    untested: dict[Root, None] = field(default_factory=dict)  # hosts to evaluate, because they changed
    refused: set[Root] = field(default_factory=set)  # hosts that fit, but that a filter rejects
    failed_roots: set[Root] = field(default_factory=set)  # unchanged hosts on which placing has failed
    closed: set[Root] = field(default_factory=set)  # hosts that other requests tried when placing failed
    retried: set[Root] = field(default_factory=set)  # unchanged hosts tried again after a release
    # hosts that are reserved for others, and that these requests may use: only there they fit in their zone
    usable_reserved: frozenset[Root] = frozenset()
    searched: Rank | None = None  # rank for which hosts were searched last
    swept: bool = False  # True if no change but only the periodic search of all hosts found the fitting hosts
    more: bool = False  # True if more hosts may fit: the search stopped when all waiting requests had one
    all_hosts: bool = False  # True if all hosts must be evaluated
    retry_at: float | None = None  # when all hosts are evaluated again even without a change

    @property
    def first(self) -> QueueKey:
        """Return the first request of the equivalence class, even if it is being placed now."""
        return min([*self.trying, *self.waiting[:1]]) if self.trying else self.waiting[0]

    def position(self, key: QueueKey) -> int:
        """Return how many requests of the class precede `key`, plus 1."""
        return bisect_left(self.waiting, key) + sum(tried < key for tried in self.trying) + 1

    def preceding(self, other: Rank, shares: Shares, now: float) -> int:
        """Return how many waiting requests of the class precede one of another project that comes after the
        first of them.
        """
        priority, _, _ = self.waiting[0]
        if other.priority != priority:
            return bisect_left(self.waiting, (other.priority,))
        several = shares.requests_until(other.turn, self.project, self.size, now)
        return min(several, bisect_left(self.waiting, (priority + 1,)))

    def may_fit(self, free: Mapping[str, int]) -> bool:
        """Return whether a host with these free amounts may fit requests of the class."""
        return any(
            not each.resource_class or each.amount <= free.get(each.resource_class, 0)
            for each in self.watches
        )

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
        """Return whether a request waits and a change since its last evaluation may give it a host."""
        return bool(self.waiting) and bool(self.all_hosts or self.further or self.untested or self.open)


class Turns:
    """The order in which queues with fitting hosts place requests in one step: by the turns of their
    projects. With several projects, a queue places only so many requests that the turn of its project comes
    after that of the next project; it may get a further turn in the same step.
    """

    def __init__(self, ready: Iterable[ClassQueue], shares: Shares, now: float) -> None:
        self._shares = shares
        self._now = now
        self._heap = [(self._rank(queue), queue.kind, queue) for queue in ready]
        heapify(self._heap)

    def next(self) -> ClassQueue | None:
        """Remove and return the next queue; None if no queue is left."""
        self._refresh()
        return heappop(self._heap)[-1] if self._heap else None

    def limit(self, queue: ClassQueue) -> int:
        """Return how many requests of a queue precede those of other projects; at least 1."""
        own = []
        self._refresh()
        while self._heap and self._heap[0][-1].project == queue.project:
            own.append(heappop(self._heap))
            self._refresh()
        several = len(queue.waiting)
        if self._heap:
            several = queue.preceding(self._heap[0][0], self._shares, self._now)
        for each in own:
            heappush(self._heap, each)
        return several

    def again(self, queue: ClassQueue) -> None:
        """Give a queue a further turn, if more of its requests may fit."""
        if queue.waiting and queue.open:
            heappush(self._heap, (self._rank(queue), queue.kind, queue))

    def _rank(self, queue: ClassQueue) -> Rank:
        return self._shares.rank(queue.project, queue.waiting[0], self._now)

    def _refresh(self) -> None:
        """Bring the next queue to the front: turns have become later since queues were added."""
        while self._heap:
            rank, kind, queue = self._heap[0]
            present = self._rank(queue)
            if present == rank:
                return
            heapreplace(self._heap, (present, kind, queue))


@dataclass(slots=True, eq=False)
class Trial:
    """The waiting requests of one equivalence class that are being placed now, on hosts found for them."""

    queue: ClassQueue
    roots: tuple[Root, ...]
    kept: tuple[Root, ...]  # hosts in `roots` closed to requests of other classes until the trial ends
    closed: frozenset[Root]  # hosts that the requests may not use
    open: set[Id]
    size: Size  # that the share of the project counts for each request
    at: float  # when they were counted
    given: set[Id] = field(default_factory=set)  # requests that got hosts
    placed: bool = False
    scheduled: bool = False  # whether a time for the next attempt is set


@dataclass(frozen=True, slots=True)
class NextRequest:
    """A waiting request to place now, because a host may fit it; and hosts that this request may not use."""

    request: Id
    excluded: frozenset[Root]
    forgotten: bool = False  # True if only the periodic search of all hosts found a host for the request


class HostData(ReservingCloud, Protocol):
    """The interface by which the waiting queues ask for hosts' free amounts and for the hosts that fit."""

    def free(self, root: Root) -> Mapping[str, int]:
        """Return a host's free amounts by resource class, or an empty mapping if no such host exists."""

    def base(self, kind: str) -> str:
        """Return the equivalence class of a class's requests without regard to their project."""

    def watches(self, kind: str) -> Sequence[CapacityNeeded]:
        """Return, for each flavor of the equivalence class, an amount of one resource class that a host must
        have free to fit any request of the class.
        """

    def search(self, kind: str, among: Roots | None, excluding: Roots, enough: int) -> HostsFound:
        """Return which hosts in `among` (None: all) fit the equivalence class; stop at `enough` instances."""

    def named_zone(self, kind: str) -> str:
        """Return the zone that requests of the equivalence class name; "" if they name none."""

    def size(self, kind: str) -> Size:
        """Return which fraction of the cloud's capacity a request of the equivalence class takes."""


class ChangeHistory:
    """The history of recent changes of hosts, for requests whose search began before the last changes."""

    def __init__(self) -> None:
        self.mark = 0  # number of changes of hosts so far
        self._recent: deque[tuple[int, Root]] = deque()
        self._forgotten = 0  # the number of the last change that is no longer remembered

    def remember(self, roots: Roots) -> None:
        """Record changed hosts, each with the next mark."""
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
